"""Translation of a client's body and headers into the domain's Request."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, Final, Protocol

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.clusters import NO_CLUSTERS, Clusters
from qlm.domain.formats.extensions import (
    NO_CLASS_EXTENSIONS,
    NO_REQUEST_EXTENSIONS,
    ClassExtensions,
    RequestExtensions,
)
from qlm.domain.formats.strands import TaskName
from qlm.domain.formats.token_logprobs import prompt_bytes_per_token
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.ports.tracing import TRACE_HEADER, well_formed
from qlm.domain.request import PROMPT_TAIL_TOKENS, Answer, AnswerKind, Request, RequestMetadata
from qlm.domain.sampling import Sampling
from qlm.domain.slo import Slo
from qlm.gateway.api.bodies.constraints import completion_grammar
from qlm.gateway.api.errors import OVERFLOW, ApiError, too_long
from qlm.gateway.api.messages import Message
from qlm.gateway.api.objective import Objective, choose, p_met, p_met_min
from qlm.gateway.api.schema import Body, ChatBody
from qlm.gateway.core.class_choice import ClassChoice
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.sampling_defaults import DEFAULTED, SamplingDefaults
from qlm.gateway.core.tasks.memory import TaskCall
from qlm.gateway.core.tokenizer import ChatMessage, ServedModel

TENANT_HEADERS: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
TENANT_CHARACTERS_MAX: Final = 100
TENANT_DEFAULT: Final = "default"
_DIGEST_DIGITS: Final = 32

KEY_TENANT: Final = ":tenant"
"""Name, among the headers of a call, of the tenant of its API key; no header that is sent begins so."""

COMPLETION_TOKENS: Final = 16
"""Output limit of /v1/completions without one, as of OpenAI and vLLM."""


ECHO_CHARACTERS_MAX: Final = 65_536
"""Longest prompt that is repeated: it becomes part of the metadata that message and shared state hold."""


PROMPT_LOGPROBS_BYTES_MAX: Final = 262_144
"""Longest packed log probabilities of a prompt, which its output log holds, times `n`: 10 922 tokens with one
candidate each besides the token itself, 1489 with 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The facts of a request besides its body.

    Attributes:
        id: Its new id.
        headers: By name in lower case.
        now_ns: Its arrival.
        fingerprint: Digest of its body, if it has an Idempotency-Key.
        detached: The client does not wait.
        default_slo: Objective of a request that names none; None for the configured default.
        task: The task that it belongs to; None if it stands alone.
    """

    id: RequestId
    headers: Mapping[str, str]
    now_ns: int
    fingerprint: str = ""
    detached: bool = False
    default_slo: Slo | None = None
    task: TaskCall | None = None


def to_metadata(
    body: Body,
    prompt_ids: TokenIds,
    served: ServedModel,
    limits: GatewayLimits,
    arrival: Arrival,
    classes: ClassChoice,
    clusters: Clusters = NO_CLUSTERS,
) -> RequestMetadata:
    """Return the request without its prompt.

    Raises:
        InvalidValueError: A value is out of range, for example for this model.
        ApiError: Prompt and output do not fit the model's context.
    """
    if arrival.default_slo is not None:
        limits = limits.model_copy(update={"default_slo": arrival.default_slo})
    urgency = None if arrival.task is None else arrival.task.urgency
    objective = choose(body.slo, arrival.headers, body.service_tier, limits, arrival.now_ns, urgency)
    cls = classes.of(served.spec.id, objective.slo, body.priority, arrival.now_ns)
    task = None if arrival.task is None else TaskName(*arrival.task.key)
    cls = clusters.of(cls, len(prompt_ids), task)
    return RequestMetadata(
        id=arrival.id,
        cls=cls.missed() if objective.late else cls,
        tenant=tenant(body, arrival.headers),
        slo=objective.slo,
        on_miss=objective.on_miss,
        arrival_ns=arrival.now_ns,
        prompt_tokens=len(prompt_ids),
        prompt_tail=prompt_ids[-PROMPT_TAIL_TOKENS:],
        sampling=_sampling(body, prompt_ids, served, limits),
        answer=Answer(
            kind=AnswerKind.CHAT if isinstance(body, ChatBody) else AnswerKind.COMPLETION,
            stop=body.stops,
            skip_special_tokens=body.skip_special_tokens,
            include_stop=body.include_stop_str_in_output,
            echo_text=_echo_text(body, prompt_ids, served),
        ),
        fingerprint=arrival.fingerprint,
        detached=arrival.detached,
        traceparent=traceparent(arrival.headers),
        extensions=_extensions(body, arrival, limits, objective, len(prompt_ids)),
    )


def _extensions(
    body: Body, arrival: Arrival, limits: GatewayLimits, objective: Objective, prompt_tokens: int
) -> RequestExtensions:
    least = p_met_min(body.slo, arrival.headers, limits) or None
    promised = p_met(body.slo, arrival.headers)
    logprobs, prompt_logprobs, task = (
        body.engine_logprobs,
        _prompt_logprobs(body, prompt_tokens),
        arrival.task,
    )
    optional = (least, promised, objective.deadline_ms, logprobs, prompt_logprobs, task)
    if all(each is None for each in optional):
        return NO_REQUEST_EXTENSIONS
    cls = NO_CLASS_EXTENSIONS if promised is None else ClassExtensions(p_met=promised)
    return RequestExtensions(
        cls=cls,
        p_met=least,
        deadline_ms=objective.deadline_ms,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        task_id=None if task is None else task.key.id,
        task_calls=None if task is None or task.calls_left is None else task.calls_left - 1,
        task_deadline_ns=None if task is None else task.deadline_ns,
    )


def _prompt_logprobs(body: Body, prompt_tokens: int) -> int | None:
    top = body.engine_prompt_logprobs
    if top is None:
        return None
    most = PROMPT_LOGPROBS_BYTES_MAX // (prompt_bytes_per_token(top) * body.n)
    if prompt_tokens > most:
        param = "logprobs" if body.prompt_logprobs is None else "prompt_logprobs"
        message = f"{param} is {top}; expected null with a prompt of {prompt_tokens} tokens: at most {most}"
        raise ApiError(status=400, message=message, param=param, code="invalid_value")
    return top


def with_prompt(metadata: RequestMetadata, prompt_ids: TokenIds) -> Request:
    """Join metadata and prompt to the request that goes into the global queue."""
    kept: dict[str, Any] = {name: getattr(metadata, name) for name in _METADATA_FIELDS}
    return Request(prompt_ids=prompt_ids, **kept)


_METADATA_FIELDS: Final = tuple(each.name for each in fields(RequestMetadata))


class Asking(Protocol):
    """What bodies of all routes say of who asks, and how its client returns."""

    @property
    def user(self) -> str | None:
        """The tenant, if the body names it."""
        ...

    @property
    def resume_grace_s(self) -> float | None:
        """Time for which the client may be disconnected, if the body names it."""
        ...


def tenant(body: Asking, headers: Mapping[str, str]) -> str:
    """Return the tenant of a request: that of its API key, its field `user` if not empty, or the header.

    Raises:
        InvalidValueError: The header is longer than a name may be.
    """
    if (of_key := headers.get(KEY_TENANT)) is not None:
        return of_key
    if body.user:
        return _as_name(body.user)
    return named_tenant(headers)


def _as_name(user: str) -> str:
    """Return a user as the name of a tenant: OpenAI and vLLM take one of any length, and each is another."""
    if len(user) <= TENANT_CHARACTERS_MAX:
        return user
    digest = sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{user[: TENANT_CHARACTERS_MAX - _DIGEST_DIGITS - 1]}-{digest}"


def named_tenant(headers: Mapping[str, str]) -> str:
    """Return the tenant that the headers of a call name.

    Raises:
        InvalidValueError: The header is longer than a name may be.
    """
    for name in TENANT_HEADERS:
        if value := headers.get(name):
            if len(value) > TENANT_CHARACTERS_MAX:
                raise InvalidValueError(name, value, f"a name of at most {TENANT_CHARACTERS_MAX} characters")
            return value
    return TENANT_DEFAULT


def chat_messages(messages: list[Message]) -> list[ChatMessage]:
    """Return the conversation as the chat template of a tokenizer takes it: text alone."""
    return [ChatMessage(role=each.role, content=each.text, name=each.name) for each in messages]


def _echo_text(body: Body, prompt_ids: TokenIds, served: ServedModel) -> str:
    if isinstance(body, ChatBody) or not body.echo:
        return ""
    text = body.prompt if isinstance(body.prompt, str) else served.tokenizer.decode(prompt_ids)
    if len(text) > ECHO_CHARACTERS_MAX:
        have = f"prompt has {len(text)} characters; expected at most {ECHO_CHARACTERS_MAX} with echo"
        raise ApiError(status=400, message=have, param="echo", code="invalid_value")
    return text


def _sampling(body: Body, prompt_ids: TokenIds, served: ServedModel, limits: GatewayLimits) -> Sampling:
    max_tokens = _max_tokens(body, len(prompt_ids), served, limits)
    if body.min_tokens > max_tokens:
        raise InvalidValueError("min_tokens", body.min_tokens, f"at most the output limit ({max_tokens})")
    bias = tuple((int(id), value) for id, value in body.logit_bias.items())
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    _check_ids(field, prompt_ids, served)
    _check_ids("stop_token_ids", body.stop_token_ids, served)
    _check_ids("logit_bias", [id for id, _ in bias], served)
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        seed=body.seed,
        ignore_eos=body.ignore_eos,
        stop_token_ids=tuple(body.stop_token_ids),
        eos_token_ids=tuple(sorted(served.tokenizer.eos_ids)),
        logit_bias=bias,
        grammar=_grammar(body),
        adapter=served.adapter,
        **_defaulted(body, served.defaults),
    )


def _grammar(body: Body) -> str:
    """Return the constraint of a completion; a chat's comes from its render tier."""
    if isinstance(body, ChatBody):
        return ""
    wanted = None if body.response_format is None else body.response_format.model_dump()
    constraint = body.structured_outputs
    return completion_grammar(wanted, None if constraint is None else constraint.fields)


def _defaulted(body: Body, defaults: SamplingDefaults) -> dict[str, Any]:
    asked = {name: getattr(body, name) for name in DEFAULTED}
    used = {name: getattr(defaults, name) if value is None else value for name, value in asked.items()}
    return used | {"top_k": max(0, used["top_k"])}  # -1 and 0 both mean "off"


def _max_tokens(body: Body, prompt_tokens: int, served: ServedModel, limits: GatewayLimits) -> int:
    context = served.spec.context_tokens
    field = "messages" if isinstance(body, ChatBody) else "prompt"
    if prompt_tokens == 0:
        raise InvalidValueError(field, "", "at least one token")
    if prompt_tokens >= context:
        message = (
            f"{OVERFLOW} {context} tokens. However, "
            f"{field} has {prompt_tokens} tokens; expected at most {context - 1}"
        )
        raise too_long(field, message, _prompt_too_long(prompt_tokens, context - 1))
    if prompt_tokens > (longest := limits.prompt_tokens_max):
        message = f"{field} has {prompt_tokens} tokens; expected at most {longest}"
        raise too_long(field, message, _prompt_too_long(prompt_tokens, longest))
    room = context - prompt_tokens
    name, asked = body.output_limit
    bounds = (
        [room] if served.defaults.output_tokens_max is None else [room, served.defaults.output_tokens_max]
    )
    if asked is None:
        return min(*bounds, _unnamed_limit(body, served, limits, room))
    if asked > context:  # as in vLLM 0.32, which cuts a smaller one to the room
        message = f"{OVERFLOW} {context} tokens. However, {name} is {asked}; expected at most {context}"
        sum_shown = f"{prompt_tokens} + {asked} > {context}; expected max_tokens of at most {context}"
        raise too_long(name, message, f"input length and `max_tokens` exceed context limit: {sum_shown}")
    return min(*bounds, asked)


def _prompt_too_long(tokens: int, longest: int) -> str:
    # Claude Code reads both numbers.
    return f"prompt is too long: {tokens} tokens > {longest} maximum"


def _unnamed_limit(body: Body, served: ServedModel, limits: GatewayLimits, room: int) -> int:
    """Return the output limit of a request that names none; as in vLLM but for what the operator sets."""
    configured = limits.default_max_tokens
    if not isinstance(body, ChatBody):
        return COMPLETION_TOKENS if configured is None else configured
    return min(each for each in (configured, served.defaults.max_tokens, room) if each is not None)


def traceparent(headers: Mapping[str, str]) -> str:
    """Return the client's trace context; a malformed one is ignored, as W3C Trace Context requires."""
    context = headers.get(TRACE_HEADER, "")
    return context if context and well_formed(context) else ""


def _check_ids(field: str, ids: TokenIds | list[int], served: ServedModel) -> None:
    vocabulary = served.tokenizer.vocabulary
    if ids and max(ids) >= vocabulary:
        raise InvalidValueError(field, max(ids), f"token ids below {vocabulary}, the model's vocabulary")
