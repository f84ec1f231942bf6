"""Port to distributed tracing: spans, and the W3C trace context that joins them across processes."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

TRACE_HEADER: Final = "traceparent"
"""Header that carries the context over HTTP, and metadata key over gRPC (W3C Trace Context)."""

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attribute = str | int | float | bool

# OpenTelemetry's semantic conventions for generative AI, as vLLM's own span `llm_request` uses them.
OPERATION: Final = "gen_ai.operation.name"
REQUEST_ID: Final = "gen_ai.request.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
QUEUE_S: Final = "gen_ai.latency.time_in_queue"
FIRST_TOKEN_S: Final = "gen_ai.latency.time_to_first_token"
E2E_S: Final = "gen_ai.latency.e2e"
SLO_CLASS: Final = "qlm.slo_class"
INSTANCE: Final = "qlm.instance"
OUTCOME: Final = "qlm.outcome"

# OpenTelemetry's semantic conventions for errors, HTTP and gRPC.
ERROR_TYPE: Final = "error.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
RPC_SYSTEM: Final = "rpc.system"
RPC_SERVICE: Final = "rpc.service"
RPC_METHOD: Final = "rpc.method"
GRPC_STATUS: Final = "rpc.grpc.status_code"


class SpanKind(StrEnum):
    """Role of the process that records a span."""

    SERVER = "server"
    CLIENT = "client"
    CONSUMER = "consumer"


class Span(Protocol):
    """Timed operation within a trace."""

    @property
    def traceparent(self) -> str:
        """Trace context for work on its behalf in other processes."""
        ...

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        ...

    def end(self, at_ns: int, error: str = "") -> None:
        """End the span, as failed if there is an error (one line)."""
        ...


class Tracer(Protocol):
    """Factory of spans; exports them once they have ended."""

    def begin(
        self, name: str, *, kind: SpanKind, parent: str, at_ns: int, attributes: Mapping[str, Attribute]
    ) -> Span:
        """Begin a span.

        Args:
            name: Measured operation; one of few.
            parent: Traceparent that the span continues; empty for a new trace.
        """
        ...


def well_formed(traceparent: str) -> bool:
    """Return True for a W3C traceparent of the form that all versions share."""
    return _TRACEPARENT.fullmatch(traceparent) is not None
