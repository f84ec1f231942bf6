"""What a response needs later than its answer: its `response_state`, which travels with its metadata.

So it lives in the message and in the record of its request, as long as they do, and any gateway can show the
response, stream it, or continue its conversation.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.field_checks import RESPONSE_STATE_CHARACTERS_MAX
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import invalid
from qlm.gateway.api.responses_api.body import ResponseBody
from qlm.gateway.api.responses_api.items import as_items, content_field
from qlm.gateway.api.responses_api.tools import ToolNames

_SHOWN: Final = (
    "background",
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "store",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "user",
)
"""Fields of a body that its response shows."""

_WHOLE_NUMBERS: Final = frozenset({"max_output_tokens", "top_logprobs"})
"""Of these, those that a response shows as they were read: as 5, if 5.0 came."""


_BASE64: Final = "."
"""Beginning of a state in base64. One of an earlier version is in base85, which has no such character, and
which Python decodes a hundred times slower."""

_STEP_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class ResponseState:
    """A response, without what is known of its request.

    Attributes:
        fields: Fields of its body that it shows.
        items: Its input; None if that is not kept.
    """

    fields: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]] | None = None

    @property
    def stored(self) -> bool:
        """True if later calls may find it."""
        return bool(self.fields.get("store", True))

    @property
    def tool_names(self) -> ToolNames:
        """Names of the functions of its namespaces."""
        return ToolNames(self.fields.get("tools") or ())

    @property
    def background(self) -> bool:
        """True if no client waits for it."""
        return bool(self.fields.get("background", False))


def state_of(body: ResponseBody, plain: Mapping[str, Any]) -> ResponseState:
    """Return the state of a response; `plain` is its body as received."""
    fields = {
        name: getattr(body, name) if name in _WHOLE_NUMBERS else plain[name]
        for name in _SHOWN
        if plain.get(name) is not None
    }
    return ResponseState(fields, as_items(body.input) if body.store else None)


def with_state(metadata: RequestMetadata, state: ResponseState) -> RequestMetadata:
    """Return the metadata of a request with what of a state there is room for.

    Its input is left out if it is too large: then no response can continue it.

    Raises:
        ApiError: Even without the input, the state is too large.
    """
    # Both are part of the extensions, which have at most 64 KiB.
    room = RESPONSE_STATE_CHARACTERS_MAX - len(metadata.extensions.render_state or "")
    most = (room - len(_BASE64)) // 4 * 3
    packed = _compressed(_plain(state), most) if _may_fit(state) else None
    if packed is None:
        packed = _compressed(_plain(replace(state, items=None)), most)
    if packed is None:
        have = f"instructions, tools and text have more than {most} bytes when compressed"
        raise invalid("instructions", f"{have}; expected at most that, or store: false")
    text = _BASE64 + base64.b64encode(packed).decode()
    return replace(metadata, extensions=replace(metadata.extensions, response_state=text))


def read_state(metadata: RequestMetadata) -> ResponseState | None:
    """Return the state of a request; None for one of another API.

    Raises:
        UndecodableDataError: It cannot be read.
    """
    text = metadata.extensions.response_state
    if text is None:
        return None
    try:
        fields, items = orjson.loads(zlib.decompress(_bytes(text)))
        return ResponseState(fields, items)
    except (ValueError, TypeError, zlib.error) as error:
        raise UndecodableDataError(f"the response state cannot be read: {error!r}") from error


def _may_fit(state: ResponseState) -> bool:
    """Return whether an input may fit: not one with images, whose data do not compress."""
    parts = (part for item in state.items or () for part in _parts(item))
    data = sum(len(url) for part in parts if isinstance(url := part.get("image_url"), str))
    return data <= RESPONSE_STATE_CHARACTERS_MAX


def _parts(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = item.get(content_field(item))
    if isinstance(content, list):
        yield from (part for part in content if isinstance(part, Mapping))


def _bytes(text: str) -> bytes:
    if text.startswith(_BASE64):
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    return base64.b85decode(text)


def _plain(state: ResponseState) -> bytes:
    # Of a response that no later call may find, only that is kept.
    kept = state if state.stored else ResponseState({"store": False})
    items = None if kept.items is None else list(kept.items)
    return orjson.dumps([dict(kept.fields), items])


def _compressed(plain: bytes, most: int) -> bytes | None:
    """Return what is compressed to at most so many bytes; None, without going on, if it is larger."""
    compressor, made = zlib.compressobj(), bytearray()
    for start in range(0, len(plain), _STEP_BYTES):
        made += compressor.compress(plain[start : start + _STEP_BYTES])
        if len(made) > most:
            return None
    made += compressor.flush()
    return bytes(made) if len(made) <= most else None
