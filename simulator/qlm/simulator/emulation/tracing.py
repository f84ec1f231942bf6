"""Span `llm_request` of an emulated engine, as vLLM 0.32 records it for each request."""

import time
from typing import TYPE_CHECKING, Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.tracing import (
    COMPLETION_TOKENS,
    E2E_S,
    FIRST_TOKEN_S,
    PROMPT_TOKENS,
    REQUEST_ID,
    REQUEST_MAX_TOKENS,
    Attribute,
    Span,
    SpanKind,
    Tracer,
)
from qlm.simulator.emulation.vllm_requests import VllmRequest
from qlm.simulator.engine.model import Emission

if TYPE_CHECKING:
    from qlm.agents.shell.otlp import OtelTracer

SPAN: Final = "llm_request"


class EngineSpan:
    """Span of one request, from its arrival to the end of its response."""

    def __init__(self, span: Span, began_ns: int) -> None:
        """Use `begin_request`."""
        self._span = span
        self._began_ns = began_ns
        self._first_ns: int | None = None
        self._tokens = 0

    def emitted(self, emission: Emission) -> None:
        """Count generated tokens."""
        if emission.token_ids and self._first_ns is None:
            self._first_ns = time.time_ns()
        self._tokens += len(emission.token_ids)

    def end(self) -> None:
        """End the span."""
        now_ns = time.time_ns()
        self._span.note({COMPLETION_TOKENS: self._tokens, E2E_S: (now_ns - self._began_ns) / 1e9})
        if self._first_ns is not None:
            self._span.note({FIRST_TOKEN_S: (self._first_ns - self._began_ns) / 1e9})
        self._span.end(now_ns)


def begin_request(tracer: Tracer, wanted: VllmRequest, traceparent: str) -> EngineSpan:
    """Begin the span of a request.

    Args:
        tracer: Records the span.
        wanted: The request.
        traceparent: Trace context of the client; empty if none.
    """
    now_ns = time.time_ns()
    attributes: dict[str, Attribute] = {
        REQUEST_ID: wanted.external_id,
        REQUEST_MAX_TOKENS: wanted.sampling.max_tokens,
        PROMPT_TOKENS: len(wanted.prompt_ids),
    }
    span = tracer.begin(SPAN, kind=SpanKind.SERVER, parent=traceparent, at_ns=now_ns, attributes=attributes)
    return EngineSpan(span, now_ns)


def make_tracer(endpoint: str) -> "OtelTracer":
    """Make a tracer that sends all spans to an endpoint of OTLP.

    Raises:
        InvalidValueError: The packages for tracing are not installed.
    """
    try:
        from qlm.agents.shell.otlp import otlp_tracer
    except ImportError as error:
        raise InvalidValueError(
            "otlp-traces-endpoint", endpoint, f"the package {error.name} installed: qlm-serving[tracing]"
        ) from error
    return otlp_tracer(endpoint, sample=1.0, part="engine")
