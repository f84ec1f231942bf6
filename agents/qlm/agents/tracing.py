"""Spans of what an agent does for a request: its wait in the queue, and each generation on an engine."""

from dataclasses import replace
from typing import Final

from qlm.agents.held import Held
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
_NS_PER_S: Final = 1e9


class GenerationSpan:
    """One generation, from its submission until it is over.

    Attributes:
        call: The call to make: the engine's own span continues ours.
    """

    def __init__(self, call: EngineCall, span: Span, began_ns: int) -> None:
        """Use `begin_generation`."""
        self.call: Final = replace(call, traceparent=span.traceparent)
        self._span = span
        self._began_ns = began_ns
        self._first_ns: int | None = None
        self._tokens = 0

    def generated(self, tokens: int, now_ns: int) -> None:
        """Note tokens that came."""
        if self._first_ns is None:
            self._first_ns = now_ns
        self._tokens += tokens

    def end(self, finish: str, detail: str, now_ns: int) -> None:
        """End it; `finish` and `detail` as in `events.GenerationEnded`. One that was aborted made room."""
        self._span.note(
            {OUTCOME: finish, COMPLETION_TOKENS: self._tokens, E2E_S: (now_ns - self._began_ns) / _NS_PER_S}
        )
        if self._first_ns is not None:
            self._span.note({FIRST_TOKEN_S: (self._first_ns - self._began_ns) / _NS_PER_S})
        failed = finish in ("refused", "lost")
        self._span.end(now_ns, (detail or finish) if failed else "")


def begin_generation(
    tracer: Tracer, held: Held, call: EngineCall, instance: InstanceId, now_ns: int
) -> GenerationSpan:
    """Begin the span of a generation; with its first one, a request's wait in the queue has ended.

    Args:
        tracer: Where spans go.
        held: The request, as it was submitted.
        call: What was submitted.
        instance: Where.
        now_ns: When, nanoseconds since the epoch.
    """
    request = held.request
    if waited_in_queue(held):
        _queue_span(tracer, held, instance, now_ns)
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


def waited_in_queue(held: Held) -> bool:
    """Whether a request that was just submitted had not run before, here or elsewhere."""
    return held.legs == 1 and not held.resumed_at


def _queue_span(tracer: Tracer, held: Held, instance: InstanceId, now_ns: int) -> None:
    request = held.request
    tracer.begin(
        QUEUE_SPAN,
        kind=SpanKind.CONSUMER,
        parent=request.traceparent,
        at_ns=request.arrival_ns,
        attributes={REQUEST_ID: request.id, SLO_CLASS: request.cls.slo, INSTANCE: instance},
    ).end(now_ns)
