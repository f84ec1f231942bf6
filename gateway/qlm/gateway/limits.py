"""What an operator may set on a gateway."""

from dataclasses import dataclass, field
from typing import Final

from qlm.domain.slo import DeadlineSlo, Slo, TokenSlo

P_MET_MIN_MAX: Final = 0.999
"""Highest probability that may be asked for: no forecast knows its tails any better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits, defaults and pauses of one gateway.

    Attributes:
        default_slo: Objective of a request that names none.
        interactive_slo: Objective of `service_tier: "priority"`.
        max_tokens_default: Output limit of a request that names none, if the model's context has room.
        prompt_tokens_max: Longest prompt accepted, whatever the model's context.
        body_bytes_max: Largest request body accepted.
        queue_depth_max: Waiting requests in the cluster, above which new ones are refused.
        class_depth_max: Waiting requests of one class, late ones included, above which it is full; None: no
            limit.
        queue_prompt_tokens_max: Waiting prompt tokens in the cluster, likewise; None: no limit.
        refuse_without_instance: Refuse (503) rather than queue for a model that no live instance can serve.
        p_met_min: Refuse a request that is forecast to meet its objective with a smaller probability, unless
            it says otherwise (`slo.p_met_min`); None: refuse none for that.
        retry_after_max_s: Longest Retry-After given; OpenAI's clients do not wait longer than 120 s.
        keepalive_s: A stream that has been silent for this long gets a comment.
        poll_s: A request whose output has been silent for this long is looked up; doubles up to `poll_max_s`.
        poll_max_s: Longest pause between two look-ups of one request.
        resume_grace_stream_s: How long a broken stream may be resumed before its request is cancelled.
        resume_grace_plain_s: Likewise for a plain answer; with an Idempotency-Key the former holds.
        lost_after_s: How long the store may know less than was shown before a request counts as lost.
        unknown_after_s: Likewise for a request of which nothing was shown, and which store and queue do not
            have: longer than the broker takes to take back what a dead machine held (twice its heartbeat).
        publish_timeout_s: How long a confirmation by the broker may take.
        probe_timeout_s: How long a readiness probe may take.
        view_interval_s: How often the queue is looked at for admission.
        encode_inline_chars: Prompts longer than this are tokenized on a thread.
        encode_threads: Number of such threads.
        resumable_streams: Streams carry `id:` lines and comments; `x-qlm-stream` may say otherwise.
        metric_classes_max: Objectives that get a metric label of their own; further ones share `other`.
    """

    default_slo: Slo = field(default_factory=lambda: DeadlineSlo(deadline_ms=60_000))
    interactive_slo: Slo = field(default_factory=lambda: TokenSlo(ttft_ms=1000, tpot_ms=100))
    max_tokens_default: int = 512
    prompt_tokens_max: int = 1_000_000
    body_bytes_max: int = 4 * 1024 * 1024
    queue_depth_max: int = 100_000
    class_depth_max: int | None = None
    queue_prompt_tokens_max: int | None = None
    refuse_without_instance: bool = False
    p_met_min: float | None = None
    retry_after_max_s: float = 60.0
    keepalive_s: float = 10.0
    poll_s: float = 2.0
    poll_max_s: float = 30.0
    resume_grace_stream_s: float = 10.0
    resume_grace_plain_s: float = 0.0
    lost_after_s: float = 15.0
    unknown_after_s: float = 45.0
    publish_timeout_s: float = 10.0
    probe_timeout_s: float = 2.0
    view_interval_s: float = 1.0
    encode_inline_chars: int = 8192
    encode_threads: int = 2
    resumable_streams: bool = True
    metric_classes_max: int = 100
