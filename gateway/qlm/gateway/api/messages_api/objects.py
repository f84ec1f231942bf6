"""Answers of Anthropic's API: the message object and errors."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import orjson

from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.messages_api import (
    ContentBlock,
    MessageErrorAnswer,
    MessageObject,
    MessageUsage,
)
from qlm.gateway.api.fields.openai import AnswerMessage
from qlm.gateway.api.ids import MESSAGE_PREFIX
from qlm.gateway.core.session_events import SendFinal

_TIERS: Final = {"flex": "batch", "priority": "priority"}

_ERRORS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Kinds of errors by status; any other is `invalid_request_error`."""


def message_object(
    metadata: RequestMetadata, tier: str, final: SendFinal, message: AnswerMessage, *, thinking: bool
) -> MessageObject:
    """Return a whole answer; without `thinking`, its reasoning is left out."""
    blocks = list(_blocks(message, thinking=thinking))
    called = any(block["type"] == "tool_use" for block in blocks)
    return {
        **begun_message(metadata, tier),
        "content": blocks,
        "stop_reason": stop_reason(final, called=called),
        "stop_sequence": stop_sequence(final, called=called),
        "usage": message_usage(metadata, tier, final.offset, final.cached_tokens),
    }


def begun_message(metadata: RequestMetadata, tier: str) -> MessageObject:
    """Return a message of which nothing has come yet."""
    return {
        "id": f"{MESSAGE_PREFIX}{metadata.id}",
        "type": "message",
        "role": "assistant",
        "model": metadata.answers_as,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": message_usage(metadata, tier, 0),
    }


def _blocks(message: AnswerMessage, *, thinking: bool) -> Iterator[ContentBlock]:
    if thinking and (reasoning := message.get("reasoning")):
        yield {"type": "thinking", "thinking": reasoning, "signature": ""}
    if text := message["content"]:
        yield {"type": "text", "text": text}
    for call in message.get("tool_calls", ()):
        called = call["function"]
        yield {
            "type": "tool_use",
            "id": call.get("id", ""),
            "name": called.get("name", ""),
            "input": _input(called.get("arguments", "")),
        }


def _input(arguments: str) -> Mapping[str, Any]:
    """Return the input of a tool; an empty one if the output limit cut it off."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return given if isinstance(given, dict) else {}


def stop_reason(final: SendFinal, *, called: bool) -> str:
    """Return why an answer ended; `called` if it has a call of a tool."""
    if final.finish_reason == "length":
        return "max_tokens"
    if called:
        return "tool_use"
    return "end_turn" if stop_sequence(final, called=called) is None else "stop_sequence"


def stop_sequence(final: SendFinal, *, called: bool) -> str | None:
    """Return the stop sequence that ended an answer; None behind a call of a tool, which is the reason."""
    return final.stop_reason if isinstance(final.stop_reason, str) and not called else None


def message_usage(
    metadata: RequestMetadata, tier: str, output_tokens: int, cached_tokens: int | None = None
) -> MessageUsage:
    """Return token counts."""
    cached = cached_tokens or 0
    return {
        "input_tokens": metadata.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
        "service_tier": _TIERS.get(tier, "standard"),
    }


def error_object(error: ApiError, request_id: str | None = None) -> MessageErrorAnswer:
    """Return an error in Anthropic's shape."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    fields: dict[str, Any] = {
        "type": kind,
        "message": error.anthropic_message or error.message,
        "param": error.param,
        "code": error.code,
    }
    if error.details:
        fields["details"] = error.details
    return cast("MessageErrorAnswer", {"type": "error", "error": fields, "request_id": request_id})
