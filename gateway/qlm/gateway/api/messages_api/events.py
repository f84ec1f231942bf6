"""Events of a streamed message of Anthropic's API, as bytes."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from qlm.domain.attainment import UNDECIDED, Attainment
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.event_shape import Logprobs
from qlm.gateway.api.fields.messages_api import ContentBlock
from qlm.gateway.api.lateness import lateness
from qlm.gateway.api.messages_api.objects import (
    begun_message,
    error_object,
    message_usage,
    stop_reason,
    stop_sequence,
)
from qlm.gateway.core.session_events import SendFinal

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageEvents:
    """Formats the events of one streamed message."""

    def __init__(self, metadata: RequestMetadata, tier: str, *, thinking: bool, pings: bool = True) -> None:
        """Prepare a stream.

        Args:
            metadata: The request.
            tier: Its service tier.
            thinking: Show the reasoning of the model.
            pings: Write events while nothing else comes.
        """
        self._metadata = metadata
        self._tier = tier
        self._thinking = thinking
        self._pings = pings
        self._index = -1
        self._open: str | None = None
        self._called = False

    def opening(self) -> bytes:
        """Return the events that come at once."""
        return _event("message_start", {"message": begun_message(self._metadata, self._tier)})

    def role(self) -> bytes:
        """Return nothing: the first event names the role."""
        return b""

    def keep_alive(self) -> bytes:
        """Return an event without content, unless the client wants none."""
        return _PING if self._pings else b""

    def text(self, offset: int, text: str, logprobs: Logprobs = None) -> bytes:
        """Return the events with new text."""
        return self.delta(offset, {"content": text})

    def delta(self, offset: int, fields: Mapping[str, Any], logprobs: Logprobs = None) -> bytes:
        """Return the events of a delta of a chat."""
        made = b""
        if self._thinking and (reasoning := fields.get("reasoning")):
            made += self._within("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            made += self._delta({"type": "thinking_delta", "thinking": reasoning})
        if content := fields.get("content"):
            made += self._within("text", {"type": "text", "text": ""})
            made += self._delta({"type": "text_delta", "text": content})
        for call in fields.get("tool_calls", ()):
            made += self._call(call)
        return made

    def ending(self, final: SendFinal, logprobs: Logprobs = None) -> bytes:
        """Return the last events of a plain text."""
        return self.derendered_end(final, {"content": final.text}, final.finish_reason)

    def derendered_end(
        self,
        final: SendFinal,
        fields: Mapping[str, Any],
        finish_reason: str | None,
        logprobs: Logprobs = None,
    ) -> bytes:
        """Return the last events of an answer that ended well, with its last delta."""
        made = self.delta(final.offset, fields) + self._end_block()
        ended = {
            "delta": {
                "stop_reason": stop_reason(final, called=self._called),
                "stop_sequence": stop_sequence(final, called=self._called),
            },
            "usage": message_usage(self._metadata, self._tier, final.offset, final.cached_tokens),
        }
        late = lateness(final.attainment)
        made += _event("message_delta", ended if late is None else ended | {"qlm": late})
        return made + _event("message_stop", {})

    def error(self, offset: int, error: ApiError, attainment: Attainment = UNDECIDED) -> bytes:
        """Return the last event of a stream that ended badly."""
        data = error_object(error, self._metadata.id)
        if (late := lateness(attainment)) is not None:
            data["qlm"] = late
        return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"

    def _call(self, call: Mapping[str, Any]) -> bytes:
        called = call.get("function") or {}
        begun: ContentBlock = {
            "type": "tool_use",
            "id": call.get("id", ""),
            "name": called.get("name", ""),
            "input": {},
        }
        made = self._within(f"tool_use {call.get('index', 0)}", begun)
        self._called = True
        if arguments := called.get("arguments"):
            made += self._delta({"type": "input_json_delta", "partial_json": arguments})
        return made

    def _within(self, block: str, begun: ContentBlock) -> bytes:
        """Return the events that end another block and begin this one; nothing if it is open."""
        if self._open == block:
            return b""
        made = self._end_block()
        self._open = block
        self._index += 1
        return made + _event("content_block_start", {"index": self._index, "content_block": begun})

    def _delta(self, delta: Mapping[str, str]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        signed = (
            self._delta({"type": "signature_delta", "signature": ""}) if self._open == "thinking" else b""
        )
        self._open = None
        return signed + _event("content_block_stop", {"index": self._index})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
