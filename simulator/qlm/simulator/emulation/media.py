"""Images, sound and video of emulated models.

An item becomes a mark with the digest of its data, so that answers depend on it, and `EMBEDDED` tokens of one
id: what an encoder would embed.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qlm.simulator.emulation.vllm_requests import VllmApiError

EMBEDDED: Final = 16
"""Tokens that stand for an item, beside its mark."""

_EMBEDDING: Final = "\x1a"
_MODALITIES: Final[Mapping[str, str]] = {
    "image_url": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
_ITEM: Final = re.compile(rb"<(image|audio|video) ([0-9a-f]{8})>\x1a{%d}" % EMBEDDED)


def item_text(part: Mapping[str, Any]) -> str:
    """Return the text of a content part other than text.

    Raises:
        VllmApiError: It has no data that can be read.
    """
    modality, digest = _item(part)
    return f"<{modality} {digest[:8]}>{_EMBEDDING * EMBEDDED}"


def features(
    messages: Sequence[Mapping[str, Any]], token_ids: Sequence[int], *, tensors: bool
) -> dict[str, Any] | None:
    """Return vLLM's `features` of a rendered conversation; None for text alone.

    Args:
        messages: The conversation.
        token_ids: Its prompt.
        tensors: With the data.
    """
    digests = {digest[:8]: digest for _, digest in _items(messages)}
    if not digests:
        return None
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[dict[str, int]]] = {}
    for found in _ITEM.finditer(bytes(token_ids)):
        modality, short = (each.decode() for each in found.groups())
        if short in digests:
            hashes.setdefault(modality, []).append(digests[short])
            places.setdefault(modality, []).append(
                {"offset": found.start(), "length": found.end() - found.start()}
            )
    data = {
        modality: [base64.b64encode(each.encode()).decode() for each in of] for modality, of in hashes.items()
    }
    return {"mm_hashes": hashes, "mm_placeholders": places, "kwargs_data": data if tensors else None}


def check_features(given: object, prompt_tokens: int) -> None:
    """Check `features` of a prompt, as far as an emulated engine needs them.

    Raises:
        VllmApiError: They lack data, or name tokens that the prompt does not have.
    """
    if given is None:
        return
    try:
        assert isinstance(given, Mapping)
        for modality, places in given["mm_placeholders"].items():
            data = given["kwargs_data"][modality]
            assert len(data) == len(places) == len(given["mm_hashes"][modality])
            assert all(isinstance(each, str) for each in data)
            assert all(0 <= each["offset"] <= prompt_tokens - each["length"] for each in places)
            assert all(each["length"] == EMBEDDED for each in places)
    except (LookupError, TypeError, AttributeError, AssertionError) as error:
        raise VllmApiError(
            400, f"The features do not fit the prompt: {error!r}.", param="features"
        ) from error


def _items(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from (_item(part) for part in content if part["type"] != "text")


def _item(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return modality and digest of a part with data."""
    kind = part["type"]
    if kind not in _MODALITIES:
        raise VllmApiError(400, f"Unknown part type: {kind}")
    text = part[kind]["data"] if kind == "input_audio" else part[kind]["url"].partition(";base64,")[2]
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise VllmApiError(400, f"Failed to load {_MODALITIES[kind]}: {error}") from error
    if not data:
        raise VllmApiError(400, f"Failed to load {_MODALITIES[kind]}: it has no data")
    return _MODALITIES[kind], hashlib.sha256(data).hexdigest()
