"""The tokens of a rendered prompt that stand for media."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from qlm.domain.formats.media import Media, Placeholder, encode_media
from qlm.domain.ids import TokenIds
from qlm.gateway.api.errors import ApiError, invalid


def media_of(answer: Mapping[str, Any], prompt_ids: TokenIds, parts: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the encoded media of a prompt.

    Args:
        answer: What the render tier answered, with `features`.
        prompt_ids: The prompt.
        parts: Its content parts with media, in order.

    Raises:
        ApiError: The answer lacks some of them, or the model's prompts have a form that engines cannot take.
    """
    try:
        ranges: Mapping[str, Sequence[Mapping[str, int]]] = answer["features"]["mm_placeholders"]
        found = {
            modality: [(int(item["offset"]), int(item["length"])) for item in sorted(items, key=_offset)]
            for modality, items in ranges.items()
        }
    except (LookupError, TypeError, ValueError) as error:
        raise _failed(f"the render tier's answer has no places of the media: {error!r}") from error
    if (count := sum(map(len, found.values()))) != len(parts):
        raise _failed(f"the render tier found {count} media in {len(parts)} parts")
    placeholders = {
        modality: [_embedded(prompt_ids, *item) for item in items] for modality, items in found.items()
    }
    return encode_media(Media(parts=parts, placeholders=placeholders))


def _failed(message: str) -> ApiError:
    return ApiError(status=500, message=message, kind="server_error", code="render_failed")


def _offset(item: Mapping[str, int]) -> int:
    return int(item["offset"])


def _embedded(prompt_ids: TokenIds, offset: int, length: int) -> Placeholder:
    """Return the tokens of an item that get an embedding.

    A model may put marks around them. vLLM's own range includes those, but vLLM 0.32 does not say which are
    marks (`PlaceholderRangeInfo` has no `is_embed`). The embedded ones have one id: the longest run is taken.

    Raises:
        ApiError: They are in several runs, or it is not clear which one is theirs.
    """
    tokens = prompt_ids[offset : offset + length]
    runs = sorted(((len(list(run)), id) for id, run in groupby(tokens)), reverse=True)
    if not runs or len(tokens) < length:
        raise _failed(f"the render tier put {length} tokens of an item at {offset} of {len(prompt_ids)}")
    (count, embedded), first = runs[0], tokens.index(runs[0][1])
    if tokens.count(embedded) > count or (len(runs) > 1 and runs[1][0] == count):
        message = (
            "messages have media that this model marks row by row; expected text alone, since vLLM 0.32 "
            "does not say which of the tokens are marks"
        )
        raise invalid("messages", message, "unsupported_value")
    return Placeholder(offset + first, count, length)
