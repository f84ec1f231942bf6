"""Images, sound and video of a prompt, as the store holds them between a gateway and an engine.

The prompt has the token ids that stand for them already; an engine needs, beside the content parts, where.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.values import value

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Tokens of a prompt that stand for one item.

    Attributes:
        offset: The first of those that get an embedding.
        length: Their number, without those around them.
        whole: Number of all tokens that the model's processor made for the item.
    """

    offset: int
    length: int
    whole: int


@value
class Media:
    """All media of a prompt.

    Attributes:
        parts: Content parts of a chat in their order, with their data in `data:` URLs or base64.
        placeholders: By modality (`image`, `audio`, `video`), one for each item in its order.
    """

    parts: Sequence[Mapping[str, Any]]
    placeholders: Mapping[str, Sequence[Placeholder]]


def encode_media(media: Media) -> bytes:
    """Return the JSON text of media; equal media have the same."""
    ranges = {
        modality: [[each.offset, each.length, each.whole] for each in items]
        for modality, items in media.placeholders.items()
    }
    plain = {"version": VERSION, "parts": list(media.parts), "placeholders": ranges}
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def decode_media(data: bytes) -> Media:
    """Return the media of a JSON text.

    Raises:
        UndecodableDataError: It is damaged, or of another version.
    """
    try:
        plain = orjson.loads(data)
        if plain["version"] != VERSION:
            raise UndecodableDataError(f"media have version {plain['version']!r}; expected {VERSION}")
        ranges = {
            modality: [Placeholder(*map(int, each)) for each in items]
            for modality, items in plain["placeholders"].items()
        }
        return Media(parts=list(plain["parts"]), placeholders=ranges)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UndecodableDataError(f"media cannot be read: {error!r}") from error


def media_digest(data: bytes) -> str:
    """Return the digest of encoded media, by which a request knows them (`Sampling.media`)."""
    return hashlib.sha256(data).hexdigest()[:32]
