"""Spans that stay in memory, for tests of what makes them."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qlm.agents.shell.otlp import OtelTracer


class Spans:
    """A tracer, and what it has made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer(self._exporter, 1.0, "test")

    def ended(self, name: str) -> list[ReadableSpan]:
        """The spans of this name that have ended, in the order of their ends."""
        self.tracer.flush()
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def attributes(self, name: str) -> list[dict[str, Any]]:
        """Their attributes."""
        return [dict(span.attributes or {}) for span in self.ended(name)]

    def close(self) -> None:
        """Stop."""
        self.tracer.close()


def failed(span: ReadableSpan) -> str | None:
    """Why a span failed; None if it did not."""
    return None if span.status.is_unset else span.status.description
