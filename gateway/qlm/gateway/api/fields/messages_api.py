"""Answers of Anthropic's Messages API."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from qlm.gateway.api.fields.openai import Lateness


class ContentBlock(TypedDict):
    """A block of the answer; its type says which fields it has."""

    type: Literal["text", "thinking", "tool_use"]  # Kind of block
    text: NotRequired[str]  # Of `text`
    thinking: NotRequired[str]  # Of `thinking`: the reasoning
    signature: NotRequired[str]  # Of `thinking`: always empty, since nothing is encrypted
    id: NotRequired[str]  # Of `tool_use`: what its `tool_result` has to name
    name: NotRequired[str]  # Of `tool_use`: the tool
    input: NotRequired[Mapping[str, Any]]  # Of `tool_use`: its input


class MessageUsage(TypedDict):
    """Token counts."""

    input_tokens: int  # Tokens of the prompt, but for those of `cache_read_input_tokens`
    cache_creation_input_tokens: int  # Anthropic's; always 0
    cache_read_input_tokens: int  # Those that the engine found in its prefix cache; 0 if it did not say so
    output_tokens: int  # Tokens of the answer; in a stream, so far
    service_tier: str  # `priority`, `batch` for the tier `flex`, else `standard`


class MessageObject(TypedDict):
    """An answer."""

    id: str  # `msg_` and the request's id
    type: Literal["message"]  # Kind of object
    role: Literal["assistant"]  # Always the same
    model: str  # The model that answers
    content: Sequence[ContentBlock]  # The answer
    # `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null at the beginning of a stream.
    stop_reason: str | None
    stop_sequence: str | None  # The stop sequence that ended it
    usage: MessageUsage  # Token counts


class MessageDelta(TypedDict):
    """What is new: of a block, or at the end of the message."""

    type: NotRequired[
        Literal["text_delta", "thinking_delta", "input_json_delta", "signature_delta"]
    ]  # Of a block
    text: NotRequired[str]  # New text
    thinking: NotRequired[str]  # New reasoning
    partial_json: NotRequired[str]  # A piece of the input of a tool, as JSON text
    signature: NotRequired[str]  # Always empty
    stop_reason: NotRequired[str]  # As of the message
    stop_sequence: NotRequired[str | None]  # As of the message


class MessageEvent(TypedDict):
    """The data of one event of a streamed message; its type says which fields it has."""

    type: str  # As after `event:`
    message: NotRequired[MessageObject]  # Of `message_start`: the message without content
    index: NotRequired[int]  # Place of the block
    content_block: NotRequired[ContentBlock]  # Of `content_block_start`: the block without content
    delta: NotRequired[MessageDelta]  # Of `content_block_delta` and `message_delta`
    usage: NotRequired[MessageUsage]  # Of `message_delta`: all tokens
    qlm: NotRequired[Lateness]  # Of `message_delta`, unless the request has no objective


class MessageError(TypedDict):
    """The error of a call."""

    type: str  # Anthropic's kind of error
    message: str  # The problem, the value, and what was expected
    param: str | None  # The offending field; null without one. QLM's
    code: str | None  # A word for programs; see [errors](http.md#errors). QLM's
    details: NotRequired[Mapping[str, Any]]  # Of a refused `thread`: what Anthropic's SDK goes by


class MessageErrorAnswer(TypedDict):
    """An error."""

    type: Literal["error"]  # Kind of object
    error: MessageError  # The error
    request_id: NotRequired[str | None]  # As in the header `x-request-id`
    qlm: NotRequired[Lateness]  # In the last event of a stream, unless the request has no objective


class TokenCount(TypedDict):
    """A number of tokens."""

    input_tokens: int  # Tokens of the prompt that the conversation makes
