"""Answers of the Responses API."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from qlm.gateway.api.fields.openai import Lateness


class ItemPart(TypedDict):
    """A part of an item."""

    type: Literal["output_text", "reasoning_text"]  # Kind of part
    text: str  # Its text
    annotations: NotRequired[Sequence[Any]]  # OpenAI's; of `output_text`, always empty
    logprobs: NotRequired[Sequence[Any]]  # Of `output_text`: as `content` of a chat's, if it asks for them


class OutputItem(TypedDict):
    """An item of the output; its type says which fields it has."""

    id: str  # Derives from the request's id, so that it is the same at each gateway
    type: Literal["message", "function_call", "reasoning"]  # Kind of item
    status: str  # `completed`; `incomplete` if the output limit ended it; in a stream first `in_progress`
    role: NotRequired[Literal["assistant"]]  # Of a message
    content: NotRequired[Sequence[ItemPart]]  # Of a message or of reasoning: its text
    summary: NotRequired[Sequence[Any]]  # Of reasoning: always empty, since all of it is given
    call_id: NotRequired[str]  # Of a call: what its `function_call_output` has to name
    name: NotRequired[str]  # Of a call: the tool
    namespace: NotRequired[str]  # Of a call of a tool of a namespace: that
    arguments: NotRequired[str]  # Of a call: its arguments, as JSON text


class InputTokenDetails(TypedDict):
    """More about the input tokens."""

    cached_tokens: int  # Those that the engine found in its prefix cache; 0 where it did not report that
    cache_write_tokens: int  # OpenAI's; always 0


class OutputTokenDetails(TypedDict):
    """More about the output tokens."""

    reasoning_tokens: int  # OpenAI's; always 0: they are not counted apart


class ResponseUsage(TypedDict):
    """Token counts."""

    input_tokens: int  # Tokens of the prompt
    input_tokens_details: InputTokenDetails  # More about them
    output_tokens: int  # Tokens of the answer
    output_tokens_details: OutputTokenDetails  # More about them
    total_tokens: int  # Their sum


class ResponseFailure(TypedDict):
    """Why a response failed."""

    code: str  # `server_error`
    message: str  # The problem


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]  # Always the same


class ResponseObject(TypedDict):
    """A response; fields that are not explained are those of its request, or OpenAI's defaults."""

    id: str  # `resp_` and the request's id
    object: Literal["response"]  # Kind of object
    created_at: int  # Arrival of the request, seconds since the epoch
    status: str  # `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`
    background: bool  # True if no client waits for it
    error: ResponseFailure | None  # Why it failed
    incomplete_details: IncompleteDetails | None  # Why it is incomplete
    instructions: str | None  # As in the request
    max_output_tokens: int | None  # As in the request
    max_tool_calls: None  # OpenAI's; always null
    metadata: Mapping[str, str]  # As in the request
    model: str  # The model that answers
    output: Sequence[OutputItem]  # The answer; empty until it has ended
    parallel_tool_calls: bool  # As in the request
    previous_response_id: str | None  # As in the request
    prompt_cache_key: str | None  # As in the request
    reasoning: Mapping[str, Any]  # As in the request
    safety_identifier: str | None  # As in the request
    service_tier: str  # The service tier of the objective
    store: bool  # As in the request
    temperature: float  # The one used
    text: Mapping[str, Any]  # As in the request
    tool_choice: str | Mapping[str, Any]  # As in the request
    tools: Sequence[Mapping[str, Any]]  # As in the request
    top_logprobs: int  # As in the request
    top_p: float  # The one used
    truncation: Literal["disabled"]  # Always the same
    usage: ResponseUsage | None  # Token counts, once it has ended
    user: str | None  # As in the request


class ResponseEvent(TypedDict):
    """The data of one event of a streamed response; its type says which fields it has."""

    type: str  # As after `event:`
    # Rises, and is the same at each gateway. Numbers are left out where an event has the text of several
    # tokens.
    sequence_number: int
    response: NotRequired[ResponseObject]  # Of the first and last events
    item: NotRequired[OutputItem]  # Of `response.output_item.added` and `.done`
    part: NotRequired[ItemPart]  # Of `response.content_part.added` and `.done`
    item_id: NotRequired[str]  # The item that it belongs to
    output_index: NotRequired[int]  # Place of the item
    content_index: NotRequired[int]  # Place of the part
    delta: NotRequired[str]  # New text, or a new piece of arguments
    text: NotRequired[str]  # The whole text
    name: NotRequired[str]  # Name of the tool
    arguments: NotRequired[str]  # The whole arguments
    logprobs: NotRequired[Sequence[Any]]  # Of text: those that no event had, if the request asks for them
    qlm: NotRequired[Lateness]  # In the last event, unless the request has no objective
    code: NotRequired[str | None]  # Of `error`: a word for programs
    message: NotRequired[str]  # Of `error`: the problem
    param: NotRequired[str | None]  # Of `error`: the offending field


class InputItem(TypedDict):
    """An item of the input; its type says which fields it has, and each field is as the client sent it."""

    id: str  # That of the client, or one that derives from the request's id
    type: Literal["message", "function_call", "function_call_output", "reasoning"]  # Kind of item
    status: NotRequired[str]  # Not of reasoning: `completed`, unless the client said otherwise
    role: NotRequired[str]  # Of a message
    content: NotRequired[Sequence[Mapping[str, Any]]]  # Of a message or of reasoning: its parts
    summary: NotRequired[Sequence[Any]]  # Of reasoning
    call_id: NotRequired[str]  # Of a call and its output: the call
    name: NotRequired[str]  # Of a call: the tool
    namespace: NotRequired[str]  # Of a call of a tool of a namespace: that
    arguments: NotRequired[str]  # Of a call: its arguments, as JSON text
    output: NotRequired[str | Sequence[Any]]  # Of the output of a call


class InputItemList(TypedDict):
    """Items of an input."""

    object: Literal["list"]  # Kind of object
    data: Sequence[InputItem]  # The last one first, unless `order` is `asc`
    first_id: str | None  # Id of the first one; null without any
    last_id: str | None  # Id of the last one, for `after`
    has_more: bool  # Whether further ones follow


class DeletedResponse(TypedDict):
    """A response that was deleted."""

    id: str  # Its id
    object: Literal["response"]  # Kind of object
    deleted: Literal[True]  # Always the same
