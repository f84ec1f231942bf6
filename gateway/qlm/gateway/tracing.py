"""The span of each request that a gateway answers; without a tracer nothing is done.

Whichever door a request comes by, `accept.publish` begins its span and the hub ends it. One that is refused
before has a span all the same, with what its door answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.ids import RequestId
from qlm.domain.ports.tracing import (
    COMPLETION_TOKENS,
    E2E_S,
    ERROR_TYPE,
    FIRST_TOKEN_S,
    OPERATION,
    OUTCOME,
    PROMPT_TOKENS,
    REQUEST_ID,
    REQUEST_MAX_TOKENS,
    REQUEST_MODEL,
    SLO_CLASS,
    Attribute,
    Span,
    SpanKind,
    Tracer,
)
from qlm.domain.request import AnswerKind, Request, RequestCard
from qlm.domain.shown import cut
from qlm.gateway.errors import ApiError
from qlm.gateway.session_events import SendFinal
from qlm.gateway.translate import traceparent

SPAN: Final = "qlm.request"
_OPERATIONS: Final = {AnswerKind.CHAT: "chat", AnswerKind.COMPLETION: "text_completion"}
_NS_PER_S: Final = 1e9

REFUSED: Final = "refused"
"""The outcome of a request that was never queued."""

_FAULT_STATUS_MIN: Final = 500
"""From this HTTP status on it is not the client's doing: by OpenTelemetry a server's span fails then only."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A request that is not queued yet, as its door sees it.

    Attributes:
        kind: The API that was called.
        arrival_ns: When it came.
        headers: Header or metadata names in lower case.
        call: Attributes that tell which call of which protocol it is.
        answered: Attributes that tell how the protocol answers an error.
        model: The model that it names, once that is read; whatever the client wrote there.
        id: Its id, once it has one.
    """

    kind: AnswerKind
    arrival_ns: int
    headers: Mapping[str, str]
    call: Mapping[str, Attribute]
    answered: Callable[[ApiError], Mapping[str, Attribute]]
    model: object = ""
    id: RequestId | None = None


class RequestSpans:
    """The open spans of one gateway: at most one per open request."""

    def __init__(self, tracer: Tracer | None) -> None:
        """Trace with this; None: not at all."""
        self._tracer = tracer
        self._open: dict[RequestId, Span] = {}
        self._not_queued: dict[RequestId, Span] = {}

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
        if not final.outcome.ok:
            span.note({ERROR_TYPE: str(final.outcome)})
        if first_output_ns is not None:
            span.note({FIRST_TOKEN_S: (first_output_ns - card.arrival_ns) / _NS_PER_S})
        span.end(now_ns, "" if final.outcome.ok else final.detail or str(final.outcome))

    def not_queued(self, id: RequestId) -> None:
        """Note that a request whose span has begun was not queued; `refused` ends the span."""
        if (span := self._open.pop(id, None)) is not None:
            self._not_queued[id] = span

    def refused(self, attempt: Attempt, error: ApiError, now_ns: int) -> None:
        """Tell of a request that was refused: in the span that has begun, else in one of its own."""
        if self._tracer is None:
            return
        span = self._not_queued.pop(attempt.id, None) if attempt.id is not None else None
        if span is None:
            span = self._tracer.begin(
                SPAN,
                kind=SpanKind.SERVER,
                parent=traceparent(attempt.headers),
                at_ns=attempt.arrival_ns,
                attributes={OPERATION: _OPERATIONS[attempt.kind]},
            )
            if isinstance(attempt.model, str):
                span.note({REQUEST_MODEL: cut(attempt.model)})
        span.note({OUTCOME: REFUSED, ERROR_TYPE: error.code or str(error.status)})
        span.note({**attempt.call, **attempt.answered(error)})
        span.end(now_ns, error.message if error.status >= _FAULT_STATUS_MIN else "")

    def left(self, id: RequestId, now_ns: int, why: str = "", outcome: str = "") -> None:
        """End the span of a request that this gateway no longer watches; with a reason, as failed."""
        if (span := self._open.pop(id, None)) is None:
            return
        if outcome:
            span.note({OUTCOME: outcome})
        span.end(now_ns, why)
