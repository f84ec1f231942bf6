"""Limits, defaults and timeouts of a gateway: section `limits` of the configuration."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from qlm.domain.slo import DeadlineSlo, Slo, TokenSlo

P_MET_MIN_MAX: Final = 0.999
"""Largest `p_met_min`: no forecast knows its tails any better."""

LATE_MAX_LEAST_S: Final = 0.05
"""Least `late_max_s`: from a quarter of it on, agents in the process write the coarsest pieces of streams."""

_Count = Annotated[int, Field(ge=1)]
_Duration = Annotated[float, Field(gt=0, le=86_400)]


class LimitsConfig(BaseModel):
    """Limits, defaults and timeouts of the gateway.

    Attributes:
        queue_depth_max: Waiting requests in the cluster; beyond, 429 with Retry-After.
        class_depth_max: Waiting requests of one class, late ones included; beyond, 429.
        queue_prompt_tokens_max: Waiting prompt tokens in the cluster; beyond, 429.
        p_met_min: Refuse (429) a request whose forecast probability to meet its objective is smaller;
            without it, none is refused for that. A request may set its own (`slo.p_met_min`).
        refuse_without_instance: Refuse (503) a request for a model that no live instance serves, instead of
            queueing it.
        late_max_s: Refuse (503) new requests while timers of the gateway's process are later than this, on
            average: it has too little processor. Streams come in their coarsest pieces long before.
        retry_after_max_s: Longest Retry-After, seconds. OpenAI's clients wait 120 s at most.
        body_bytes_max: Largest body of a request; beyond, 413.
        prompt_tokens_max: Longest prompt accepted, whatever the model's context.
        default_max_tokens: Largest output limit of a request that names none; without it, chats may fill the
            context, or have the `max_new_tokens` of their model, and completions have 16 tokens.
        choices_max: Most answers of one request: `n` times the number of its prompts.
        keepalive_s: A stream without output for this time gets a comment.
        resumable_streams: Streams are resumable even if their clients do not ask for that by `x-qlm-stream`.
        resume_grace_stream_s: A broken resumable stream may be resumed for this time before its request is
            cancelled. It also holds for answers with an `Idempotency-Key`, and for plain ones whose clients
            are SDKs that ran into their timeouts.
        resume_grace_plain_s: The same for other answers.
        poll_s: A request without output for this time is looked up in the store; doubles up to `poll_max_s`.
        poll_max_s: Longest time between two look-ups of one request.
        lost_after_s: A request counts as lost when the store has known less output than was streamed for
            this time.
        unknown_after_s: A request without output counts as lost when neither store nor queue has known it
            for this time. Keep it above the time in which the broker requeues messages of a dead machine
            (three heartbeats).
        publish_timeout_s: Longest wait for a confirmation by the broker. While the store is away for longer,
            new requests are refused, and clients that wait for a plain answer get 503.
        probe_timeout_s: Longest time of a readiness probe.
        view_interval_s: Time between two reads of the queue for admission control; less before and after a
            refusal for requests that came since the last one.
        encode_inline_chars: Longer prompts are tokenized on a thread.
        encode_threads: Number of these threads.
        slo_steps: Steps of a decade to which objectives are rounded down: 1, 2, 3, 4 or 10. Requests of one
            step form a class, with a queue of its own.
        classes_max: Classes in use at a gateway up to which each has its queue. Beyond, only classes with at
            least that share of the requests (1 in `classes_max`) keep theirs, and all others share queues.
        metric_classes_max: Objectives with a metric label of their own; further ones share `other`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    queue_depth_max: _Count = 100_000
    class_depth_max: _Count | None = None
    queue_prompt_tokens_max: _Count | None = None
    p_met_min: float | None = Field(None, ge=0, le=P_MET_MIN_MAX)
    refuse_without_instance: bool = False
    late_max_s: float = Field(1.0, ge=LATE_MAX_LEAST_S, le=60)
    retry_after_max_s: float = Field(60.0, ge=1, le=86_400)
    body_bytes_max: int = Field(4 * 1024 * 1024, ge=1024)
    prompt_tokens_max: _Count = 1_000_000
    default_max_tokens: _Count | None = None
    choices_max: _Count = 128
    keepalive_s: _Duration = 10.0
    resumable_streams: bool = False
    resume_grace_stream_s: float = Field(10.0, ge=0, le=86_400)
    resume_grace_plain_s: float = Field(0.0, ge=0, le=86_400)
    poll_s: _Duration = 2.0
    poll_max_s: _Duration = 30.0
    lost_after_s: _Duration = 15.0
    unknown_after_s: _Duration = 45.0
    publish_timeout_s: _Duration = 10.0
    probe_timeout_s: _Duration = 2.0
    view_interval_s: _Duration = 1.0
    encode_inline_chars: int = Field(8192, ge=0)
    encode_threads: int = Field(2, ge=1, le=256)
    slo_steps: Literal[1, 2, 3, 4, 10] = 10
    classes_max: _Count = 32
    metric_classes_max: _Count = 100


class GatewayLimits(LimitsConfig):
    """All limits of one gateway, with the default objectives of the configuration.

    Attributes:
        default_slo: Objective of a request that names none.
        interactive_slo: Objective of `service_tier: "priority"`.
    """

    default_slo: Slo = DeadlineSlo(deadline_ms=60_000)
    interactive_slo: Slo = TokenSlo(ttft_ms=1000, tpot_ms=100)
