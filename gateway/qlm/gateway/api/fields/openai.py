"""OpenAI's answer objects and stream events."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict


class Lateness(TypedDict):
    """Whether a request met its objective."""

    met: bool  # It did
    # Time by which it was late, rounded up; 0 if it was not; absent without an answer.
    late_ms: NotRequired[int]


class PromptTokenDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int  # Those that the engine found in its prefix cache


class Usage(TypedDict):
    """Token counts, as vLLM counts."""

    prompt_tokens: int  # Tokens of the prompt
    completion_tokens: int  # Tokens of the answer, stop tokens included
    total_tokens: int  # Their sum
    # Missing where the engine did not report it, and before the end of a stream.
    prompt_tokens_details: NotRequired[PromptTokenDetails]
    qlm: NotRequired[Lateness]  # At the end of a stream, unless the request has no objective


class CalledFunction(TypedDict):
    """The function of a tool call; in a stream, parts of it."""

    name: NotRequired[str]  # Name of the tool; in a stream, with the first part only
    arguments: NotRequired[str]  # Its arguments, as JSON text; in a stream, a piece of them


class AnswerToolCall(TypedDict):
    """A tool call; in a stream, a part of one."""

    # Derives from the request's id, so that it is the same at each gateway; in a stream, with the first part.
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]  # Always the same
    index: NotRequired[int]  # In a stream, the number of the call
    function: CalledFunction  # What is called


class AnswerMessage(TypedDict):
    """The message that answers."""

    role: Literal["assistant"]  # Always the same
    content: str | None  # The text; null beside tool calls
    refusal: None  # OpenAI's; always null
    tool_calls: NotRequired[Sequence[AnswerToolCall]]  # Calls of the request's tools, if there are any
    reasoning: NotRequired[str]  # The reasoning of a model that reasons


class Candidate(TypedDict):
    """A candidate for a token."""

    token: str  # Its text on its own; empty if it ends within a character
    logprob: float  # Its log probability; -9999 if it is not known
    bytes: Sequence[int]  # The text in UTF-8


class TokenLogprobs(Candidate):
    """A token of the answer."""

    top_logprobs: Sequence[Candidate]  # `top_logprobs` candidates: the token itself, then others by rank


class ChatLogprobs(TypedDict):
    """Log probabilities; in a stream, of the tokens since the event before."""

    content: Sequence[TokenLogprobs]  # One for each token


class TextLogprobs(TypedDict):
    """Log probabilities; in a stream, of the tokens since the event before. Lists of equal length."""

    text_offset: Sequence[int]  # Characters of the answer before each token
    token_logprobs: Sequence[float | None]  # Log probability of each token; null if it is not known
    tokens: Sequence[str]  # Text of each token on its own
    # Candidates by text: `logprobs` of them, and the token itself; null if they are not known.
    top_logprobs: Sequence[Mapping[str, float] | None]


class PromptCandidate(TypedDict):
    """A candidate for a token of the prompt."""

    logprob: float  # Its log probability
    rank: int | None  # Its rank among all tokens, from 1
    decoded_token: str  # Its text on its own


PromptScores = Sequence[Mapping[str, PromptCandidate] | None]


class ChatChoice(TypedDict):
    """The only choice."""

    index: int  # 0
    message: AnswerMessage  # The answer
    logprobs: ChatLogprobs | None  # Null unless asked for
    # `stop` at a stop text, a stop token or the model's own end; `length` at the limit; `tool_calls` after
    # calls of tools that were not named by the request.
    finish_reason: str | None
    stop_reason: int | str | None  # The stop text or stop token that ended it; vLLM's


class TextChoice(TypedDict):
    """The only choice."""

    index: int  # 0
    text: str  # The answer
    logprobs: TextLogprobs | None  # Null unless asked for
    # `stop` at a stop text, a stop token or the model's own end; `length` at the limit.
    finish_reason: str | None
    # The stop text or stop token that ended it; vLLM's. Of events, only the last one with text has it.
    stop_reason: NotRequired[int | str | None]
    # For each token of the prompt its candidates by token id, the token itself first; vLLM's. Null for the
    # first one, and as a whole if they are not known. Missing in events, and unless asked for.
    prompt_logprobs: NotRequired[PromptScores | None]


class _Head(TypedDict):
    """The first fields of objects and events."""

    id: str  # `chatcmpl-` or `cmpl-`, and the request's id
    created: int  # Arrival of the request, seconds since the epoch
    model: str  # The model that answers
    service_tier: str  # The service tier of the objective
    system_fingerprint: str | None  # Changes with the model's settings and the version of QLM


class ChatCompletion(_Head):
    """A whole answer to a conversation."""

    object: Literal["chat.completion"]  # Kind of object
    choices: Sequence[ChatChoice]  # One
    usage: Usage  # Token counts
    prompt_logprobs: NotRequired[PromptScores | None]  # As in the choice of a text; missing unless asked for


class TextCompletion(_Head):
    """A whole answer to a prompt."""

    object: Literal["text_completion"]  # Kind of object
    choices: Sequence[TextChoice]  # One
    usage: Usage  # Token counts


class Delta(TypedDict):
    """New text of the message; nothing at the end."""

    role: NotRequired[Literal["assistant"]]  # In the first event only
    content: NotRequired[str]  # New text
    tool_calls: NotRequired[Sequence[AnswerToolCall]]  # New parts of tool calls
    reasoning: NotRequired[str]  # New text of the reasoning


class ChunkChoice(TypedDict):
    """The only choice."""

    index: int  # 0
    delta: Delta  # New text
    logprobs: ChatLogprobs | None  # Null unless asked for
    finish_reason: str | None  # Null until the last event with text
    stop_reason: NotRequired[int | str | None]  # In the last event with text, as in a whole answer


class ChatChunk(_Head):
    """The data of one event of a streamed message."""

    object: Literal["chat.completion.chunk"]  # Kind of object
    choices: Sequence[ChunkChoice]  # One; none in the event with the usage alone
    # If `stream_options` ask for it: null but in the last event, or the counts so far in each.
    usage: NotRequired[Usage | None]
    qlm: NotRequired[Lateness]  # In the last event with text, unless the request has no objective


class TextChunk(_Head):
    """The data of one event of a streamed text."""

    object: Literal["text_completion"]  # Kind of object
    choices: Sequence[TextChoice]  # One, with what is new as `text`; none in the event with the usage alone
    # If `stream_options` ask for it: null but in the last event, or the counts so far in each.
    usage: NotRequired[Usage | None]
    qlm: NotRequired[Lateness]  # In the last event with text, unless the request has no objective


class Model(TypedDict):
    """A model."""

    id: str  # Its name, for `model`
    object: Literal["model"]  # Kind of object
    created: int  # Start of the gateway, seconds since the epoch
    owned_by: str  # `qlm`
    max_model_len: int  # Its context in tokens, prompt and output together
    parent: str | None  # The model that it adapts; null if it is no adapter


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]  # Kind of object
    data: Sequence[Model]  # In the order of the configuration


class ErrorFields(TypedDict):
    """The error."""

    message: str  # The problem, the value, and what was expected
    type: str  # OpenAI's kind of error
    param: str | None  # The offending field; null without one
    code: str | None  # A word for programs; see [errors](http.md#errors)


class ErrorAnswer(TypedDict):
    """An error."""

    error: ErrorFields  # The error
    qlm: NotRequired[Lateness]  # In the last event of a stream, unless the request has no objective
