"""Bodies of POST /v1/responses."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from qlm.gateway.api.bodies.constraints import StructuredOutputs
from qlm.gateway.api.bodies.parts import (
    Integral,
    LogitBias,
    Priority,
    SloBody,
    StopText,
    StopTokenIds,
    Strict,
)
from qlm.gateway.api.errors import invalid
from qlm.gateway.api.neutral_fields import drop_neutral
from qlm.gateway.api.responses_api.tools import Tool, check_kind, check_names
from qlm.gateway.api.schema import STOPS_MAX, explained

METADATA_PAIRS_MAX: Final = 16
ITEMS_MAX: Final = 10_000

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "cache_salt": (),
    "context_management": ([],),
    "conversation": (),
    "ec_transfer_params": (),
    "enable_response_messages": (False,),
    "kv_transfer_params": (),
    "max_tool_calls": (),
    "media_io_kwargs": (),
    "mm_payload": ("tensors",),
    "mm_processor_kwargs": (),
    "moderation": (),
    "previous_input_messages": (),
    "prompt": (),
    "return_mm_kwargs": (),
    "session_id": (),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "truncation": ("disabled",),
    "vllm_xargs": (),
    "watermarking": (),
}
"""Neutral values of unsupported fields; null is neutral everywhere."""

_LOGPROBS: Final = "message.output_text.logprobs"
_CHOICES: Final = "none, auto, required, or an object with type function, a name, and perhaps a namespace"


def _tool_choice(choice: object) -> object:
    match choice:
        case "none" | "auto" | "required":
            return choice
        case {"type": "function", "name": str(), **more} if _of_choice(more):
            return choice
    raise ValueError(_CHOICES)


def _of_choice(more: Mapping[Any, object]) -> bool:
    return not more or (more.keys() == {"namespace"} and isinstance(more["namespace"], str | None))


class TextFormat(Strict):
    """Form of the text."""

    type: Literal[
        "text", "json_object", "json_schema"
    ]  # Any text, any JSON object, or JSON that fits `schema`
    name: str | None = None  # Name of the schema
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # JSON schema of the text
    description: str | None = None  # What the schema is for, for the model
    strict: bool | None = None  # Accepted, not used: the text always fits the schema


class TextOptions(Strict):
    """What the text of the answer is like."""

    format: TextFormat | None = None  # Form of the text
    verbosity: Literal["medium"] | None = None  # OpenAI's default only


class ReasoningOptions(Strict):
    """How a model reasons."""

    # Effort of a model that reasons, for its chat template.
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    # Accepted, not used: all reasoning is given.
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # Older name of `summary`


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataText = Annotated[str, Field(max_length=512)]


class ResponseBody(Strict):
    """Body of POST /v1/responses."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=ITEMS_MAX)]  # Text, or items
    # A name from `GET /v1/models`; without, the only one.
    model: Annotated[str, Field(max_length=200)] | None = None
    instructions: str | None = None  # A first message of role `system`; not taken over by later responses
    previous_response_id: str | None = None  # The response whose conversation this one continues
    background: bool = False  # Answer at once, with a response that is `queued`
    store: bool = True  # False: the response cannot be looked up, nor continued
    stream: bool = False  # Events instead of one object
    # Output limit, reasoning included; without, what the context has room for.
    max_output_tokens: Annotated[int, Field(ge=1), Integral] | None = None
    # Texts of the client, which the response shows.
    metadata: Annotated[dict[MetadataKey, MetadataText], Field(max_length=METADATA_PAIRS_MAX)] | None = None
    # Tools that the model may call. Needs the model's render tier, as what the next three fields ask for.
    tools: Annotated[list[Tool], Field(max_length=1000)] | None = None
    # `auto` lets the model choose, `none` forbids calls, `required` asks for one, an object names the tool.
    tool_choice: Annotated[Any, BeforeValidator(_tool_choice)] = None
    text: TextOptions | None = None  # What the text is like
    reasoning: ReasoningOptions | None = None  # How the model reasons
    parallel_tool_calls: bool | None = None  # False for at most one call
    # `message.output_text.logprobs`: log probabilities of the tokens of the text. The other one is
    # accepted, not used: reasoning is given as text.
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    # With log probabilities: those of this many of the likeliest tokens at each place.
    top_logprobs: Annotated[int, Field(ge=0, le=20), Integral] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None  # Sampling; without, the model's own
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # Sampling; without, the model's own
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), Integral] | None = None  # Sampling, as in vLLM
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # Sampling, as in vLLM
    seed: Annotated[int, Integral] | None = None  # Seed of the sampling
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None  # Sampling, as in vLLM
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None  # Sampling, as in vLLM
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None  # Sampling, as in vLLM
    min_tokens: Annotated[int, Field(ge=0), Integral] | None = None  # Least number of output tokens
    ignore_eos: bool | None = None  # Go on after the end-of-sequence token
    # Texts that end the answer; they are not part of it.
    stop: StopText | Annotated[list[StopText], Field(max_length=STOPS_MAX)] | None = None
    stop_token_ids: StopTokenIds | None = None  # Tokens that end the answer
    skip_special_tokens: bool | None = None  # False leaves special tokens in the text
    include_stop_str_in_output: bool | None = None  # Leave the stop text in the answer
    # False leaves the items of reasoning out; needs the model's render tier, and no log probabilities.
    include_reasoning: bool | None = None
    logit_bias: LogitBias | None = None  # Added to the logits of tokens, by token id as text
    # Constraint on the text, as in vLLM; needs the model's render tier.
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Variables of the model's chat template
    user: str | None = None  # The tenant, as of chats
    safety_identifier: str | None = None  # Accepted, not used
    client_metadata: dict[str, Any] | None = None  # Accepted, not used: what Codex says of itself
    prompt_cache_key: str | None = None  # Accepted, not used
    prompt_cache_retention: str | None = None  # Accepted, not used
    prompt_cache_options: dict[str, Any] | None = None  # Accepted, not used
    request_id: str | None = None  # Accepted, not used: the answer's header `x-request-id` has the id
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None  # As of chats
    priority: Priority | None = None  # Lower goes first, as in vLLM
    slo: SloBody | None = None  # The objective
    # Seconds for which the client may be disconnected, as of chats.
    resume_grace_s: Annotated[float, Field(ge=0, le=3600)] | None = None

    @property
    def scored(self) -> bool:
        """Whether its text comes with log probabilities."""
        return _LOGPROBS in (self.include or ())


def parse_response(plain: Mapping[str, Any]) -> ResponseBody:
    """Return the checked body of POST /v1/responses.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    kept = drop_neutral(plain, NEUTRAL)
    for place, tool in enumerate(kept["tools"] if isinstance(kept.get("tools"), list) else ()):
        check_kind(place, tool)
    try:
        body = ResponseBody.model_validate(kept)
    except ValidationError as error:
        raise explained(error, ResponseBody) from error
    check_names(body.tools or ())
    if body.background and not body.store:
        raise invalid("store", "store is false; expected true with background: a later call has to find it")
    if body.top_logprobs and not body.scored:
        expected = f"expected it with include: [{_LOGPROBS}]"
        raise invalid("top_logprobs", f"top_logprobs is {body.top_logprobs}; {expected}")
    if body.include_reasoning is False and body.scored:
        expected = f"expected no {_LOGPROBS} in include: they would show the reasoning"
        raise invalid("include_reasoning", f"include_reasoning is false; {expected}")
    form = body.text.format if body.text else None
    if form is not None and form.type == "json_schema" and (form.schema_ is None or form.name is None):
        raise invalid("text.format", "text.format has type json_schema; expected a name and a schema with it")
    return body
