"""A collector of spans on loopback: takes what OpenTelemetry's exporters send over HTTP."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One span that came."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    seconds: float
    attributes: dict[str, Any] = field(default_factory=dict)


class Collector:
    """What came so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Seen] = []

    def of(self, trace: str) -> dict[str, Seen]:
        """The spans of a trace, by name."""
        return {span.name: span for span in self.spans if span.trace == trace}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Seen]:
    for resource in request.resource_spans:
        about = _plain(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Seen(
                    service=about.get("service.name", ""),
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    failed=span.status.code == 2,
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    attributes=_plain(span.attributes),
                )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
