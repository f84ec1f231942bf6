"""Spans of a request in the agent: its time in the queue, and each generation on an engine."""

from dataclasses import replace
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.domain.ids import InstanceId
from qlm.domain.ports.engine import EngineCall
from qlm.domain.ports.tracing import (
    COMPLETION_TOKENS,
    E2E_S,
    FIRST_TOKEN_S,
    INSTANCE,
    OPERATION,
    OUTCOME,
    PROMPT_TOKENS,
    QUEUE_S,
    REQUEST_ID,
    REQUEST_MAX_TOKENS,
    REQUEST_MODEL,
    SLO_CLASS,
    Span,
    SpanKind,
    Tracer,
)

QUEUE_SPAN: Final = "qlm.queue"
GENERATION_SPAN: Final = "qlm.generation"
_FAILED: Final = frozenset({"refused", "lost", "declined", "garbled", "media_lost"})
_NS_PER_S: Final = 1e9


class GenerationSpan:
    """Span of one generation, from its submission to its end; create it with `begin_generation`.

    Attributes:
        call: The call to make, with this span as the parent of the engine's own.
    """

    def __init__(self, call: EngineCall, span: Span, began_ns: int) -> None:
        self.call: Final = replace(call, traceparent=span.traceparent)
        self._span = span
        self._began_ns = began_ns
        self._first_ns: int | None = None
        self._tokens = 0

    def generated(self, tokens: int, now_ns: int) -> None:
        """Count tokens of the answer."""
        if self._first_ns is None:
            self._first_ns = now_ns
        self._tokens += tokens

    def end(self, finish: str, detail: str, now_ns: int) -> None:
        """End the span; `finish` and `detail` as in `events.GenerationEnded`. An abort is no failure."""
        self._span.note(
            {OUTCOME: finish, COMPLETION_TOKENS: self._tokens, E2E_S: (now_ns - self._began_ns) / _NS_PER_S}
        )
        if self._first_ns is not None:
            self._span.note({FIRST_TOKEN_S: (self._first_ns - self._began_ns) / _NS_PER_S})
        self._span.end(now_ns, (detail or finish) if finish in _FAILED else "")


def begin_generation(
    tracer: Tracer, tracked: TrackedRequest, call: EngineCall, instance: InstanceId, now_ns: int
) -> GenerationSpan:
    """Begin the span of a generation; the first one of a request also records its time in the queue."""
    request = tracked.request
    if waited_in_queue(tracked):
        _queue_span(tracer, tracked, instance, now_ns)
    span = tracer.begin(
        GENERATION_SPAN,
        kind=SpanKind.CLIENT,
        parent=request.traceparent,
        at_ns=now_ns,
        attributes={
            OPERATION: "text_completion",
            REQUEST_ID: request.id,
            REQUEST_MODEL: request.model,
            REQUEST_MAX_TOKENS: call.sampling.max_tokens,
            PROMPT_TOKENS: len(call.prompt_ids),
            QUEUE_S: (now_ns - request.arrival_ns) / _NS_PER_S,
            SLO_CLASS: request.cls.slo,
            INSTANCE: instance,
        },
    )
    return GenerationSpan(call, span, now_ns)


def waited_in_queue(tracked: TrackedRequest) -> bool:
    """Return True if a request that was just submitted runs for the first time, anywhere."""
    return tracked.generation.count == 1 and not tracked.resumed_at


def _queue_span(tracer: Tracer, tracked: TrackedRequest, instance: InstanceId, now_ns: int) -> None:
    request = tracked.request
    tracer.begin(
        QUEUE_SPAN,
        kind=SpanKind.CONSUMER,
        parent=request.traceparent,
        at_ns=request.arrival_ns,
        attributes={REQUEST_ID: request.id, SLO_CLASS: request.cls.slo, INSTANCE: instance},
    ).end(now_ns)
