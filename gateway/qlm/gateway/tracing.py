"""The span of each request that a gateway answers; without a tracer nothing is done.

Whichever door a request comes by, `accept.publish` begins its span and the hub ends it.
"""

from dataclasses import replace
from typing import Final

from qlm.domain.ids import RequestId
from qlm.domain.ports.tracing import (
    COMPLETION_TOKENS,
    E2E_S,
    FIRST_TOKEN_S,
    OPERATION,
    OUTCOME,
    PROMPT_TOKENS,
    REQUEST_ID,
    REQUEST_MAX_TOKENS,
    REQUEST_MODEL,
    SLO_CLASS,
    Span,
    SpanKind,
    Tracer,
)
from qlm.domain.request import AnswerKind, Request, RequestCard
from qlm.gateway.session_events import SendFinal

SPAN: Final = "qlm.request"
_OPERATIONS: Final = {AnswerKind.CHAT: "chat", AnswerKind.COMPLETION: "text_completion"}
_NS_PER_S: Final = 1e9


class RequestSpans:
    """The open spans of one gateway: at most one per open request."""

    def __init__(self, tracer: Tracer | None) -> None:
        """Trace with this; None: not at all."""
        self._tracer = tracer
        self._open: dict[RequestId, Span] = {}

    def begin(self, request: Request) -> Request:
        """Begin a request's span as of its arrival; return the request as it goes on, in that span."""
        if self._tracer is None:
            return request
        span = self._tracer.begin(
            SPAN,
            kind=SpanKind.SERVER,
            parent=request.traceparent,
            at_ns=request.arrival_ns,
            attributes={
                OPERATION: _OPERATIONS[request.answer.kind],
                REQUEST_ID: request.id,
                REQUEST_MODEL: request.model,
                REQUEST_MAX_TOKENS: request.sampling.max_tokens,
                PROMPT_TOKENS: request.prompt_tokens,
                SLO_CLASS: request.cls.slo,
            },
        )
        self._open[request.id] = span
        return replace(request, traceparent=span.traceparent)

    def ended(self, card: RequestCard, final: SendFinal, first_output_ns: int | None, now_ns: int) -> None:
        """End the span of a request that was answered, or ended otherwise."""
        if (span := self._open.pop(card.id, None)) is None:
            return
        span.note(
            {
                OUTCOME: str(final.outcome),
                COMPLETION_TOKENS: final.offset,
                E2E_S: (now_ns - card.arrival_ns) / _NS_PER_S,
            }
        )
        if first_output_ns is not None:
            span.note({FIRST_TOKEN_S: (first_output_ns - card.arrival_ns) / _NS_PER_S})
        span.end(now_ns, "" if final.outcome.ok else final.detail or str(final.outcome))

    def left(self, id: RequestId, now_ns: int, why: str = "", outcome: str = "") -> None:
        """End the span of a request that this gateway no longer watches; with a reason, as failed."""
        if (span := self._open.pop(id, None)) is None:
            return
        if outcome:
            span.note({OUTCOME: outcome})
        span.end(now_ns, why)
