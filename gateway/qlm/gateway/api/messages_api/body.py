"""Bodies of POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from qlm.gateway.api.bodies.parts import Integral, Priority, SloBody
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.neutral_fields import drop_neutral
from qlm.gateway.api.schema import STOPS_MAX, explained

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "container": (),
    "context_management": (
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "inference_geo": (),
    "mcp_servers": ([],),
    "thread": (),
}
"""Neutral values of unsupported fields; null is neutral everywhere."""

_NO_THREADS: Final = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Upon this, the runner of tools of Anthropic's SDK sends the whole conversation with each call."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _stops(given: Any) -> Any:
    sound = isinstance(given, list) and len(given) <= STOPS_MAX
    if not (sound and all(isinstance(each, str) and 1 <= len(each) <= 1000 for each in given)):
        raise ValueError(f"a list of at most {STOPS_MAX} texts of 1 to 1000 characters")
    return given


class MessagesTool(_Strict):
    """A tool that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=200)]  # Its name in calls
    input_schema: dict[str, Any]  # JSON schema of its input
    description: str | None = None  # What it does, for the model
    type: Literal["custom"] | None = None  # Kind of tool; those that a server runs are not supported
    strict: bool | None = None  # True if calls have to fit the schema
    eager_input_streaming: bool | None = None  # Accepted, not used: input is always streamed as it comes
    defer_loading: Literal[False] | None = None  # Tools cannot be loaded later
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it


class MessagesToolChoice(_Strict):
    """Which tool the model calls."""

    # `auto` lets the model choose, `none` forbids calls, `any` asks for one, `tool` names it.
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None  # With type `tool`, its name
    disable_parallel_tool_use: bool | None = None  # True for at most one call


class Thinking(_Strict):
    """Whether the answer shows the reasoning of the model."""

    type: Literal["enabled", "adaptive", "disabled"]  # `disabled` leaves its blocks out of the answer
    # Accepted, not used: `max_tokens` limits all tokens.
    budget_tokens: Annotated[int, Field(ge=1), Integral] | None = None
    display: Literal["summarized", "omitted"] | None = None  # `omitted` leaves the blocks out, too


class OutputFormat(_Strict):
    """Form of the text."""

    type: Literal["json_schema"]  # JSON that fits `schema`
    schema_: dict[str, Any] = Field(alias="schema")  # The JSON schema


class OutputConfig(_Strict):
    """What the answer is like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None  # Effort of a model that reasons
    format: OutputFormat | None = None  # Form of the text


class MessagesMetadata(_Strict):
    """Who asks."""

    user_id: str | None = None  # Accepted, not used: the tenant is that of the headers


class _Conversation(_Strict):
    # A name from `GET /v1/models`; without, the only one.
    model: Annotated[str, Field(max_length=200)] | None = None
    # The conversation: each with a role `user`, `assistant` or `system` and content, as text or as blocks.
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    system: str | list[dict[str, Any]] | None = None  # A first message of role `system`: text, or text blocks
    # Tools that the model may call. Needs the model's render tier, as `tool_choice` and `output_config`.
    tools: Annotated[list[MessagesTool], Field(max_length=1000)] | None = None
    tool_choice: MessagesToolChoice | None = None  # Which tool it calls
    thinking: Thinking | None = None  # Whether the answer shows reasoning; without, it does not
    output_config: OutputConfig | None = None  # What the answer is like
    cache_control: dict[str, Any] | None = None  # Accepted, not used: equal beginnings are found without it


class CountBody(_Conversation):
    """Body of POST /v1/messages/count_tokens."""


class MessagesBody(_Conversation):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1), Integral]  # Output limit, reasoning included
    # Texts that end the answer, its reasoning and calls of tools included.
    stop_sequences: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]],
        Field(max_length=STOPS_MAX),
        BeforeValidator(_stops),
    ] = Field(default_factory=list)
    stream: bool = False  # Events instead of one object
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None  # Sampling; without, the model's own
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # Sampling; without, the model's own
    # Sampling; without, the model's own.
    top_k: Annotated[int, Field(ge=0, le=1_000_000), Integral] | None = None
    metadata: MessagesMetadata | None = None  # Who asks
    # Without `slo`, both are the configured default.
    service_tier: Literal["auto", "standard_only"] | None = None
    priority: Priority | None = None  # Lower goes first; QLM's
    slo: SloBody | None = None  # The objective; QLM's


def parse_messages(plain: Mapping[str, Any]) -> MessagesBody:
    """Return the checked body of POST /v1/messages.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    kept = _kept(plain)
    try:
        return MessagesBody.model_validate(kept)
    except ValidationError as error:
        raise explained(error, MessagesBody) from error


def parse_count(plain: Mapping[str, Any]) -> CountBody:
    """Return the checked body of POST /v1/messages/count_tokens.

    Raises:
        ApiError: A field is wrong, missing or not supported; the message names it.
    """
    kept = _kept(plain)
    try:
        return CountBody.model_validate(kept)
    except ValidationError as error:
        raise explained(error, CountBody) from error


def _kept(plain: Mapping[str, Any]) -> dict[str, Any]:
    if (thread := plain.get("thread")) is not None:
        message = f"thread is {shown(thread)}; expected null: conversations are not kept here, send all of it"
        code = "unsupported_value"
        raise ApiError(status=400, message=message, param="thread", code=code, details=_NO_THREADS)
    kept = drop_neutral(plain, NEUTRAL)
    for place, tool in enumerate(kept["tools"] if isinstance(kept.get("tools"), list) else ()):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind not in (None, "custom"):
            name = f"tools[{place}].type"
            expected = "expected custom: tools that a server runs, or whose input it knows, are not supported"
            raise invalid(name, f"{name} is {shown(kind)}; {expected}", "unsupported_value")
    return kept
