"""Request bodies that clients may send."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from qlm.domain.formats.token_logprobs import LOGPROBS_MAX
from qlm.domain.shown import cut
from qlm.gateway.api.bodies.constraints import OneConstraint
from qlm.gateway.api.bodies.parts import (
    Integral,
    LogitBias,
    Priority,
    Prompts,
    SloBody,
    StopText,
    StopTokenIds,
    StreamOptions,
    Strict,
    Texts,
    TokenIds,
    TokenLists,
)
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.messages import CONTENT, Message, as_sent_back
from qlm.gateway.api.neutral_fields import CHAT, COMPLETION, drop_neutral
from qlm.gateway.api.rendered_fields import (
    PLAIN_TEXT,
    RENDERED,
    TOOL_CHOICES,
    ResponseFormat,
    Tool,
    is_tool_choice,
    without_effect,
)
from qlm.gateway.api.suggestions import suggestion

_INT64_MAX: Final = 2**63 - 1
PROBLEMS_MAX: Final = 10_000
"""Problems of a body of which the first is named; to list more takes too long, some 14 us for each."""

STOPS_MAX: Final = 64
"""Stop strings of one request. OpenAI takes 4; vLLM and Anthropic have no such limit."""


class _Body(Strict):
    """The fields of both routes."""

    # A name from `GET /v1/models`; without, the only one.
    model: Annotated[str, Field(max_length=200)] | None = None
    # Output limit; without, what the context has room for (chats) or 16 (completions), see
    # [http-api.md](../http-api.md#what-a-request-does-not-name).
    max_tokens: Annotated[int, Field(ge=1), Integral] | None = None
    min_tokens: Annotated[int, Field(ge=0), Integral] = 0  # Least number of output tokens of the answer
    # Sampling, as in vLLM; 0 is greedy. Without, this field and those below are the model's own, see
    # [http-api.md](../http-api.md#what-a-request-does-not-name).
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # Sampling, as in vLLM
    # Sampling, as in vLLM; 0 and -1 are all tokens.
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), Integral] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # Sampling, as in vLLM
    # Answers to each prompt, each a request of its own in the queue; together at most `limits.choices_max`.
    n: Annotated[int, Field(ge=1), Integral] = 1
    # Seed of the sampling.
    seed: Annotated[int, Field(ge=-_INT64_MAX - 1, le=_INT64_MAX), Integral] | None = None
    # Texts that end the answer; they are not part of it.
    stop: StopText | Annotated[list[StopText], Field(max_length=STOPS_MAX)] = Field(default_factory=list)
    # Tokens that end the answer.
    stop_token_ids: StopTokenIds = Field(default_factory=list)
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None  # Sampling, as in vLLM
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None  # Sampling, as in vLLM
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None  # Sampling, as in vLLM
    # Added to the logits of tokens, by token id as text.
    logit_bias: LogitBias = Field(default_factory=dict)
    ignore_eos: bool = False  # Go on after the end-of-sequence token
    skip_special_tokens: bool = True  # Leave special tokens out of the text
    include_stop_str_in_output: bool = False  # Leave the stop text in the answer
    stream: bool = False  # Server-sent events instead of one object
    # Log probabilities of this number of candidates for each token of the prompt, besides the token itself;
    # not in streams.
    prompt_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), Integral] | None = None
    stream_options: StreamOptions | None = None  # Contents of a stream besides text
    # The tenant, one of more than 100 characters by its beginning and a digest; without, the header
    # `x-llm-d-inference-fairness-id` or `x-gateway-inference-fairness-id`, else `default`.
    user: str | None = None
    safety_identifier: str | None = None  # Accepted, not used
    metadata: dict[str, Any] | None = None  # Accepted, not used
    store: bool | None = None  # Accepted, not used: answers are kept for `results.kept_s`
    prompt_cache_key: str | None = None  # Accepted, not used: equal beginnings are found without it
    prompt_cache_retention: str | None = None  # Accepted, not used
    prompt_cache_options: dict[str, Any] | None = None  # Accepted, not used
    request_id: str | None = None  # Accepted, not used: the answer's header `x-request-id` has the id
    priority: Priority = 0  # Lower goes first, as in vLLM
    # `flex` for no objective (batch), `priority` for the configured interactive one, `auto` and `default` for
    # the configured default. The answer has the tier used.
    service_tier: Literal["auto", "default", "flex", "priority"] = "auto"
    slo: SloBody | None = None  # The objective
    # Seconds for which the client may be disconnected before its request is cancelled; by default 10 s for
    # resumable streams and requests with an Idempotency-Key, else 0.
    resume_grace_s: Annotated[float, Field(ge=0, le=3600)] | None = None

    @field_validator("prompt_logprobs")
    @classmethod
    def _not_in_streams(cls, prompt_logprobs: int | None, info: ValidationInfo) -> int | None:
        if prompt_logprobs is not None and info.data.get("stream"):
            raise ValueError("null with stream, as in vLLM")
        return prompt_logprobs

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the output."""
        return "max_tokens", self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(_Body):
    """Body of POST /v1/completions."""

    # Text or token ids, or a list of texts or of lists of token ids: each gets answers of its own.
    prompt: str | TokenIds | Texts | TokenLists
    echo: bool = False  # Begin each answer with its prompt
    # `json_object`, or `json_schema` with a schema that the answer has to fit.
    response_format: ResponseFormat | None = None
    structured_outputs: OneConstraint = None  # Constraint on the answer, as in vLLM
    # Log probabilities of this number of candidates for each token of the answer, besides the token itself;
    # with `echo`, for the tokens of the prompt too.
    logprobs: Annotated[int, Field(ge=0, lt=LOGPROBS_MAX), Integral] | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_for_false(cls, value: object) -> object:
        return None if value is False else value

    @property
    def engine_logprobs(self) -> int | None:
        """Candidates per token to ask the engine for, the sampled token included; None without."""
        return None if self.logprobs is None else self.logprobs + 1

    @property
    def engine_prompt_logprobs(self) -> int | None:
        """Candidates to ask the engine for per token of the prompt, besides that token; None without."""
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, prompt: Prompts) -> Prompts:
        if not prompt or (isinstance(prompt, list) and ("" in prompt or [] in prompt)):
            raise ValueError("a prompt of at least one token")
        # A list with one prompt is that prompt.
        one = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else None
        return one if isinstance(one, str | list) else prompt

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):  # all are of one type, and there may be many thousands
            return (self.prompt,)
        return self.prompt

    @property
    def prompt_count(self) -> int:
        """Number of its prompts, which may be many thousands."""
        return len(self.prompts)

    @property
    def singles(self) -> Sequence["CompletionBody"]:
        """Bodies with one prompt each."""
        if len(self.prompts) == 1:
            return (self,)
        return [self.model_copy(update={"prompt": each}) for each in self.prompts]


class ChatBody(_Body):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]  # The conversation
    max_completion_tokens: Annotated[int, Field(ge=1), Integral] | None = None  # Newer `max_tokens`; it wins
    logprobs: bool = False  # Log probabilities of the answer's tokens
    # Candidates for each of these tokens, the token itself first; needs `logprobs`.
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX), Integral] = 0
    # Tools that the model may call. This field and those below need the model's render tier.
    tools: Annotated[list[Tool], Field(max_length=1000)] | None = None
    # `auto` lets the model choose, `none` forbids calls, `required` asks for one, an object names the tool.
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None  # False for at most one call
    # `json_object`, or `json_schema` with a schema that the answer has to fit.
    response_format: ResponseFormat | None = None
    structured_outputs: OneConstraint = None  # Constraint on the answer, as in vLLM
    # Effort of a model that reasons, for its chat template.
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None  # False leaves `reasoning` out of the answer, and log probabilities
    chat_template_kwargs: dict[str, Any] | None = None  # Variables of the model's chat template
    # True to go on with the last message in place of a new one, beside `add_generation_prompt` false.
    continue_final_message: bool | None = None
    # False to leave out what the chat template puts before an answer.
    add_generation_prompt: bool | None = None
    # True to add special tokens, such as one of the beginning, to those of the chat template.
    add_special_tokens: bool | None = None
    # Texts for the chat template of a model that answers from them, each an object of texts.
    documents: Annotated[list[dict[str, str]], Field(max_length=1000)] | None = None

    @field_validator("tool_choice")
    @classmethod
    def _known_choice(cls, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if choice is not None and not is_tool_choice(choice):
            raise ValueError(TOOL_CHOICES)
        return choice

    @field_validator("top_logprobs")
    @classmethod
    def _beside_logprobs(cls, top: int, info: ValidationInfo) -> int:
        if top and not info.data.get("logprobs"):
            raise ValueError("0 without logprobs true")
        return top

    @property
    def engine_logprobs(self) -> int | None:
        """Candidates per token to ask the engine for, the sampled token included; None without."""
        # As in vLLM: where reasoning is left out, its tokens must not show in the log probabilities.
        hidden = self.include_reasoning is False
        return self.top_logprobs if self.logprobs and not hidden else None

    @property
    def engine_prompt_logprobs(self) -> int | None:
        """Candidates to ask the engine for per token of the prompt, besides that token; None without."""
        return self.prompt_logprobs

    @property
    def prompt_count(self) -> int:
        """Number of its prompts."""
        return 1

    @property
    def singles(self) -> Sequence["ChatBody"]:
        """Bodies with one prompt each."""
        return (self,)

    @property
    def needs_render(self) -> str | None:
        """Name of the first field for which it needs a render tier; None without one."""
        if not RENDERED.keys().isdisjoint(self.model_fields_set):
            return next(name for name in RENDERED if name in self.model_fields_set)
        for place, each in enumerate(self.messages):
            if (name := each.rendered_field) is not None:
                return f"messages[{place}].{name}"
        return None

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """Name and value of the field that limits the output; the newer name wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


Body = CompletionBody | ChatBody


def parse_completion(body: dict[str, Any]) -> CompletionBody:
    """Return the checked body of POST /v1/completions.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    if body.get("response_format") == PLAIN_TEXT:
        body = {name: value for name, value in body.items() if name != "response_format"}
    try:
        return CompletionBody.model_validate(drop_neutral(body, COMPLETION))
    except ValidationError as error:
        raise explained(error, CompletionBody) from error


def parse_chat(body: dict[str, Any]) -> ChatBody:
    """Return the checked body of POST /v1/chat/completions.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    if not RENDERED.keys().isdisjoint(body):
        neutral = without_effect(body)
        body = {name: value for name, value in body.items() if name not in neutral}
    kept = drop_neutral(body, CHAT)
    if isinstance(messages := kept.get("messages"), list):
        kept["messages"] = [as_sent_back(message) for message in messages]
    try:
        return ChatBody.model_validate(kept)
    except ValidationError as error:
        raise explained(error, ChatBody) from error


def explained(error: ValidationError, body: type[BaseModel]) -> ApiError:
    """Return the first problem of a body as an error with one sentence."""
    if (count := error.error_count()) > PROBLEMS_MAX:
        return invalid(None, f"the body has {count} wrong values or fields; expected none")
    details = error.errors(include_url=False)
    first = details[0]
    where = _path(first)
    name = where.rpartition(".")[2]
    if first["type"] == "missing":
        return invalid(where, f"{where} is missing; expected a value", "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        message = f"{where} is {shown(first['input'])}; expected no such field: it is not supported"
        return invalid(where, message + suggestion(body, first["loc"]), "unknown_parameter")
    if first["type"] == "value_error" and "ctx" in first:
        expected = str(first["ctx"]["error"])
    elif name in _UNIONS:
        # pydantic reports each shape of a union; one sentence covers them.
        first = min(
            (each for each in details if _path(each).startswith(where)), key=lambda each: len(each["loc"])
        )
        expected = _UNIONS[name]
    else:
        expected = first["msg"].removeprefix("Input should be ")
    return invalid(where, f"{where} is {shown(first['input'])}; expected {expected}")


_SHAPES: Final = frozenset({"FunctionTool", "NamespaceTool", "WebSearchTool"})

_UNIONS: Final = {
    "prompt": "a string, a list of token ids (each 0 or more), or a list of strings or of such lists",
    "stop": f"a string or a list of at most {STOPS_MAX} strings of 1 to 1000 characters",
    "content": CONTENT,
    "deadline_at": "seconds since the epoch or an RFC 3339 time",
    "messages": "a list of 1 to 10000 messages",
    "system": "a text or a list of text blocks",
    "input": "a text or a list of 1 to 10000 items",
    "tool_choice": TOOL_CHOICES,
}


def _path(detail: ErrorDetails) -> str:
    path, before = "", None
    for part in detail["loc"]:
        # A class of a tool, or after a union `str` or `list[TextPart]`, is a tried shape, not a place.
        if not (isinstance(part, str) and (before in _UNIONS or part in _SHAPES)):
            path += f"[{part}]" if isinstance(part, int) else f".{cut(part)}" if path else cut(part)
        before = part
    return path
