"""Spans of requests, for HTTP and gRPC alike; without a tracer, none.

`sessions.publisher` begins the span of a request and `sessions.hub` ends it. A request that is refused before
has a span of its own with the error of its protocol.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.ids import RequestId
from qlm.domain.ports.clock import Clock
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
from qlm.domain.request import AnswerKind, Request, RequestMetadata
from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.translate import traceparent
from qlm.gateway.core.session_events import SendFinal

SPAN: Final = "qlm.request"
_OPERATIONS: Final = {AnswerKind.CHAT: "chat", AnswerKind.COMPLETION: "text_completion"}
_NS_PER_S: Final = 1e9

REFUSED: Final = "refused"
"""Value of `qlm.outcome` in the span of a request that was never queued."""

_FAULT_STATUS_MIN: Final = 500
"""HTTP status from which a server's span counts as failed, by OpenTelemetry's conventions."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A request that is not queued yet.

    Attributes:
        kind: The API that was called.
        arrival_ns: Its arrival.
        headers: Headers or metadata by name in lower case.
        call: Span attributes of the protocol's call.
        answered: Returns the span attributes of an error in the protocol.
        model: The model field once it is parsed, not validated.
        id: Its id, once it has one.
    """

    kind: AnswerKind
    arrival_ns: int
    headers: Mapping[str, str]
    call: Mapping[str, Attribute]
    answered: Callable[[ApiError], Mapping[str, Attribute]]
    model: object = ""
    id: RequestId | None = None


_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""The attempt of the present call; None outside one."""


class RequestSpans:
    """The open spans of one gateway: at most one per open request."""

    def __init__(self, tracer: Tracer | None) -> None:
        """Trace with `tracer`; None for no traces."""
        self._tracer = tracer
        self._open: dict[RequestId, Span] = {}
        self._not_queued: dict[RequestId, Span] = {}

    def begin(self, request: Request) -> Request:
        """Begin a request's span as of its arrival; return the request with the span as its trace context."""
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
                REQUEST_MODEL: request.answers_as,
                REQUEST_MAX_TOKENS: request.sampling.max_tokens,
                PROMPT_TOKENS: request.prompt_tokens,
                SLO_CLASS: request.cls.slo,
            },
        )
        self._open[request.id] = span
        return replace(request, traceparent=span.traceparent)

    def ended(
        self, metadata: RequestMetadata, final: SendFinal, first_output_ns: int | None, now_ns: int
    ) -> None:
        """End the span of a request that was answered, or ended otherwise."""
        if (span := self._open.pop(metadata.id, None)) is None:
            return
        span.note(
            {
                OUTCOME: str(final.outcome),
                COMPLETION_TOKENS: final.offset,
                E2E_S: (now_ns - metadata.arrival_ns) / _NS_PER_S,
            }
        )
        if not final.outcome.ok:
            span.note({ERROR_TYPE: str(final.outcome)})
        if first_output_ns is not None:
            span.note({FIRST_TOKEN_S: (first_output_ns - metadata.arrival_ns) / _NS_PER_S})
        span.end(now_ns, "" if final.outcome.ok else final.detail or str(final.outcome))

    def not_queued(self, id: RequestId, now_ns: int, error: ApiError) -> None:
        """Keep the span of an attempt that was not queued until `refused` ends it; end any other one here.

        An attempt may be for several requests; a line of a batch is none.
        """
        if (span := self._open.pop(id, None)) is None:
            return
        attempt = _ATTEMPT.get()
        if attempt is not None and attempt.id == id:
            self._not_queued[id] = span
        else:
            _end_refused(span, error, now_ns)

    def refused(self, attempt: Attempt, error: ApiError, now_ns: int) -> None:
        """Record a refused request: in its open span, or in a new one."""
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
        span.note({**attempt.call, **attempt.answered(error)})
        _end_refused(span, error, now_ns)

    @contextlib.contextmanager
    def attempting(self, attempt: Attempt, clock: Clock) -> Iterator[None]:
        """Make an attempt, which `refused` records if it is refused."""
        token = _ATTEMPT.set(attempt)
        try:
            yield
        finally:
            _ATTEMPT.reset(token)
            left = None if attempt.id is None else self._not_queued.pop(attempt.id, None)
            if left is not None:  # the call was cancelled before its client received the refusal
                left.end(clock.now_ns(), "no client waits for it any more")

    def left(self, id: RequestId, now_ns: int, why: str = "", outcome: str = "") -> None:
        """End the span of a request that this gateway no longer watches; as failed, if there is a reason."""
        if (span := self._open.pop(id, None)) is None:
            return
        if outcome:
            span.note({OUTCOME: outcome})
        span.end(now_ns, why)


def _end_refused(span: Span, error: ApiError, now_ns: int) -> None:
    span.note({OUTCOME: REFUSED, ERROR_TYPE: error.code or str(error.status)})
    span.end(now_ns, error.message if error.status >= _FAULT_STATUS_MIN else "")
