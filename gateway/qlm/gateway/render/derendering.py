"""Derendering: the output log into messages with tool calls and reasoning, whole or delta by delta.

The deltas are a function of the request and its output log alone, so that a stream resumed at another gateway
repeats none and changes none: pieces of the log have fixed ends, and ids of tool calls derive from the id of
the request.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.render.client import RenderClient
from qlm.gateway.render.state import unpack

PIECE_TOKENS_MAX: Final = 16
"""Largest piece behind less than `PIECE_TOKENS_MAX * _LONG` tokens."""

_SHORT: Final = 16
_LONG: Final = 64
"""Each piece has a share of the tokens before it: vLLM reads them anew for each piece that has a parser.

The share is a 16th at first and a 64th of long answers. So the calls of an answer grow with the logarithm of
its length, and the tokens that they read in proportion to it.
"""

_ID_CHARACTERS: Final = 24


@dataclass(frozen=True, slots=True)
class Derendered:
    """A message, or a delta of one.

    Attributes:
        fields: Its fields, without nulls but for `content` of a message.
        finish_reason: `stop`, `length` or `tool_calls` at the end.
    """

    fields: Mapping[str, Any]
    finish_reason: str | None


def piece_end(offset: int) -> int:
    """Return the end of the piece of the log that begins at an offset."""
    return offset + max(1, min(offset // _SHORT, max(PIECE_TOKENS_MAX, offset // _LONG)))


def tool_call_id(id: RequestId, index: int) -> str:
    """Return the id of a tool call of an answer."""
    return "call_" + hashlib.sha256(f"{id}/{index}".encode()).hexdigest()[:_ID_CHARACTERS]


async def whole_message(client: RenderClient, metadata: RequestMetadata, final: SendFinal) -> Derendered:
    """Return the message of a whole answer that ended well.

    Raises:
        ApiError: The render tier fails, or is away.
    """
    request, ids = _request(metadata), text_ids(metadata, final.token_ids)
    chat_request = request["chat_request"]
    if not ids:
        return Derendered({"role": "assistant", "content": ""}, final.finish_reason)
    generated = {
        "request_id": metadata.id,
        "prompt_token_ids": request["prompt_token_ids"],
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": final.finish_reason}],
    }
    answer = await client.derender({**request, "generate_response": generated})
    fields = {"content": None, **_with_ids(metadata.id, _first_choice(answer).get("message", {}))}
    if chat_request.get("parallel_tool_calls") is False and "tool_calls" in fields:
        fields["tool_calls"] = fields["tool_calls"][:1]
    required = chat_request.get("tool_choice") == "required"
    called = final.finish_reason == "stop" if required else "tool_calls" in fields
    return Derendered(fields, _ended_as(final.finish_reason, chat_request, called=called))


class Deltas:
    """The deltas of one answer, from its beginning; a `take` that failed may be repeated.

    Attributes:
        tokens: Output tokens taken.
        turns: Turns at the tier.
    """

    def __init__(self, client: RenderClient, metadata: RequestMetadata) -> None:
        self.tokens = 0
        self.turns = client.turns
        self._client = client
        self._metadata = metadata
        self._request = _request(metadata) | {"stream": True}
        self._state: object = None
        self._called = False

    async def take(self, ids: TokenIds, finish_reason: str | None) -> Derendered:
        """Take the next piece of the log; return its delta, which may be empty.

        Args:
            ids: The piece; it may be empty at the end of the answer.
            finish_reason: `stop` or `length` at the end.

        Raises:
            ApiError: The render tier fails, or is away.
        """
        with_text = text_ids(self._metadata, ids)
        if not with_text and finish_reason is None:
            self.tokens += len(ids)
            return Derendered({}, None)
        choice = {"index": 0, "token_ids": with_text, "finish_reason": finish_reason}
        chunk = {"request_id": self._metadata.id, "choices": [choice]}
        answer = await self._client.derender(
            {**self._request, "generate_chunk": chunk, "stream_state": self._state}
        )
        first = _first_choice(answer.get("chunk"))
        fields = _with_ids(self._metadata.id, first.get("delta", {}))
        self._state = answer.get("stream_state")
        self.tokens += len(ids)
        self._called |= "tool_calls" in fields
        called = self._called and finish_reason == "stop"
        return Derendered(fields, _ended_as(finish_reason, self._request["chat_request"], called=called))


def text_ids(metadata: RequestMetadata, ids: TokenIds) -> TokenIds:
    """Return a piece of the log without the token that ends the answer, which has no text."""
    if ids and not metadata.answer.include_stop and metadata.sampling.ends_with(ids[-1]):
        return ids[:-1]
    return ids


def _ended_as(finish_reason: str | None, chat_request: Mapping[str, Any], *, called: bool) -> str | None:
    """Return the finish reason; with a named tool it is `stop`, as at OpenAI and in vLLM."""
    named = isinstance(chat_request.get("tool_choice"), dict)
    return "tool_calls" if called and not named else finish_reason


def _request(metadata: RequestMetadata) -> dict[str, Any]:
    state = unpack(metadata.extensions.render_state or "")
    return {
        "model": metadata.model,
        "chat_request": state.chat_request,
        "prompt_tokens": metadata.prompt_tokens,
        "prompt_token_ids": list(state.prompt_ids or metadata.prompt_tail),
    }


def _first_choice(answer: Any) -> Mapping[str, Any]:
    try:
        first: Mapping[str, Any] = answer["choices"][0]
    except (LookupError, TypeError) as error:
        message = f"the render tier's answer cannot be read: {error!r}"
        raise ApiError(status=500, message=message, kind="server_error", code="render_failed") from error
    return first


def _with_ids(id: RequestId, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set, with ids of tool calls that are the same at each gateway."""
    fields: dict[str, Any] = _without_nulls(message)
    for place, call in enumerate(fields.get("tool_calls", ())):
        if "id" in call:
            call["id"] = tool_call_id(id, call.get("index", place))
    return fields


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None and each != []}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
