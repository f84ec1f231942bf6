"""OpenAI's answer objects and stream events, as shapes."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict


class Usage(TypedDict):
    """Token counts, as vLLM counts.

    Attributes:
        prompt_tokens: Of the prompt.
        completion_tokens: Of the answer, stop tokens included.
        total_tokens: Both.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(TypedDict):
    """The message that answers.

    Attributes:
        role: Who says it.
        content: The text.
        refusal: OpenAI's; always null.
    """

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """The only choice.

    Attributes:
        index: 0.
        message: What is answered.
        logprobs: OpenAI's; always null.
        finish_reason: `stop` at a stop text, a stop token or the model's own end; `length` at the limit.
    """

    index: int
    message: AnswerMessage
    logprobs: None
    finish_reason: str | None


class TextChoice(TypedDict):
    """The only choice.

    Attributes:
        index: 0.
        text: What is answered.
        logprobs: OpenAI's; always null.
        finish_reason: `stop` at a stop text, a stop token or the model's own end; `length` at the limit.
    """

    index: int
    text: str
    logprobs: None
    finish_reason: str | None


class _Head(TypedDict):
    """What objects and events begin with.

    Attributes:
        id: `chatcmpl-` or `cmpl-`, and the request's id.
        object: Kind of object.
        created: Arrival of the request, seconds since the epoch.
        model: The model that answers.
        service_tier: The tier that the objective amounts to.
    """

    id: str
    created: int
    model: str
    service_tier: str


class ChatCompletion(_Head):
    """A whole answer to a conversation.

    Attributes:
        choices: One.
        usage: Token counts.
    """

    object: Literal["chat.completion"]
    choices: Sequence[ChatChoice]
    usage: Usage


class TextCompletion(_Head):
    """A whole answer to a prompt.

    Attributes:
        choices: One.
        usage: Token counts.
    """

    object: Literal["text_completion"]
    choices: Sequence[TextChoice]
    usage: Usage


class Delta(TypedDict):
    """What an event adds to the message; nothing at the end.

    Attributes:
        role: In the first event.
        content: Further text.
    """

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChunkChoice(TypedDict):
    """The only choice.

    Attributes:
        index: 0.
        delta: What is new.
        logprobs: OpenAI's; always null.
        finish_reason: Null until the last event with text.
    """

    index: int
    delta: Delta
    logprobs: None
    finish_reason: str | None


class ChatChunk(_Head):
    """The data of one event of a streamed message.

    Attributes:
        choices: One; none in the event with the usage alone.
        usage: If `stream_options` ask for it: null but in the last event, or the counts so far in each.
    """

    object: Literal["chat.completion.chunk"]
    choices: Sequence[ChunkChoice]
    usage: NotRequired[Usage | None]


class TextChunk(_Head):
    """The data of one event of a streamed text.

    Attributes:
        choices: One, with what is new as `text`; none in the event with the usage alone.
        usage: If `stream_options` ask for it: null but in the last event, or the counts so far in each.
    """

    object: Literal["text_completion"]
    choices: Sequence[TextChoice]
    usage: NotRequired[Usage | None]


class Model(TypedDict):
    """A model.

    Attributes:
        id: Its name, for `model`.
        object: Kind of object.
        created: 0: it is not known.
        owned_by: `qlm`.
        max_model_len: Its context in tokens, prompt and output together.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    """All models.

    Attributes:
        object: Kind of object.
        data: In the order of the configuration.
    """

    object: Literal["list"]
    data: Sequence[Model]


class ErrorFields(TypedDict):
    """What is wrong.

    Attributes:
        message: What was wrong, the value, what was expected.
        type: OpenAI's kind of error.
        param: The offending field; null if it is none.
        code: A word for programs; see [errors](http.md#errors).
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """An error.

    Attributes:
        error: What is wrong.
    """

    error: ErrorFields
