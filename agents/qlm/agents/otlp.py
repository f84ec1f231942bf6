"""Spans by OpenTelemetry, sent to a collector over OTLP; imported only where tracing is configured."""

import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from qlm.domain.ports.tracing import TRACE_HEADER, Attribute, Span, SpanKind
from qlm.domain.shown import without_password

EXPORT_TIMEOUT_S: Final = 5
"""Also how long a collector that does not answer delays the end of a process."""

_KINDS: Final = {
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
    SpanKind.CONSUMER: trace.SpanKind.CONSUMER,
}
_W3C: Final = TraceContextTextMapPropagator()

log = logging.getLogger("qlm.agents")


class OtelSpan:
    """A span of OpenTelemetry as the port `qlm.domain.ports.tracing.Span` has it."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """Context for what is done on its behalf elsewhere."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get(TRACE_HEADER, "")

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add facts."""
        self._span.set_attributes(attributes)

    def end(self, at_ns: int, error: str = "") -> None:
        """End it; with an error, as failed."""
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end(at_ns)


class OtelTracer:
    """Makes spans and sends them in batches from its own thread; what a full queue cannot hold is lost."""

    def __init__(self, exporter: SpanExporter, sample: float, part: str) -> None:
        """Trace.

        Args:
            exporter: Where spans go.
            sample: Share of the traces begun here that are sent.
            part: Which part of QLM this process is.
        """
        resource = Resource.create(
            {
                "service.namespace": "qlm",
                "service.name": f"qlm-{part}",
                "service.version": version("qlm-serving"),
            }
        )
        sampler = ParentBased(TraceIdRatioBased(sample))
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("qlm")

    def begin(
        self, name: str, *, kind: SpanKind, parent: str, at_ns: int, attributes: Mapping[str, Attribute]
    ) -> Span:
        """Begin a span; see `qlm.domain.ports.tracing.Tracer`."""
        context = _W3C.extract({TRACE_HEADER: parent} if parent else {})
        span = self._tracer.start_span(
            name, context=context, kind=_KINDS[kind], attributes=attributes, start_time=at_ns
        )
        return OtelSpan(span)

    def flush(self) -> None:
        """Send what has ended; blocks no longer than `EXPORT_TIMEOUT_S`."""
        self._provider.force_flush(EXPORT_TIMEOUT_S * 1000)

    def close(self) -> None:
        """Send what has ended, and stop."""
        self._provider.shutdown()


def otlp_tracer(endpoint: str, sample: float, part: str) -> OtelTracer:
    """Make a tracer that sends spans to a collector.

    Args:
        endpoint: Its address for traces, say http://host:4318/v1/traces.
        sample: Share of the traces begun here that are sent.
        part: Which part of QLM this process is.
    """
    log.info("spans go to %s", without_password(endpoint))
    return OtelTracer(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S), sample, part)
