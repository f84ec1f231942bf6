"""OpenTelemetry tracer that sends spans to a collector over OTLP; imported only if tracing is configured."""

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
"""Limit of one export; an unresponsive collector delays the end of a process by this."""

_KINDS: Final = {
    SpanKind.SERVER: trace.SpanKind.SERVER,
    SpanKind.CLIENT: trace.SpanKind.CLIENT,
    SpanKind.CONSUMER: trace.SpanKind.CONSUMER,
}
_W3C: Final = TraceContextTextMapPropagator()

log = logging.getLogger("qlm.agents")


class OtelSpan:
    """Span of OpenTelemetry; implements `qlm.domain.ports.tracing.Span`."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """The W3C trace context of this span, for its children."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get(TRACE_HEADER, "")

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        self._span.set_attributes(attributes)

    def end(self, at_ns: int, error: str = "") -> None:
        """End the span; a message marks it as failed."""
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end(at_ns)


class OtelTracer:
    """Tracer that sends spans in batches from its own thread; spans beyond a full queue are dropped.

    Args:
        sample: Share of the traces started here that are sent.
        part: Part of QLM that this process runs, such as `gateway`.
    """

    def __init__(self, exporter: SpanExporter, sample: float, part: str) -> None:
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
        """Send all ended spans; blocks for `EXPORT_TIMEOUT_S` at most."""
        self._provider.force_flush(EXPORT_TIMEOUT_S * 1000)

    def close(self) -> None:
        """Send all ended spans, and stop."""
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
