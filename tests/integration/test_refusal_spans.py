"""Each request that a gateway refuses has a span, over HTTP and gRPC: real listeners, OpenTelemetry's SDK."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv.attributes import error_attributes, http_attributes

from qlm.domain.errors import BrokerUnavailableError
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.observability.tracing import SPAN
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.flaky import Faults, flaky
from support.gateway import Cluster, running_cluster
from support.rpc import rpc_gateway
from support.spans import Spans, failed

# The configuration allows no such limit: no request fits, so every one is refused.
FULL = GatewayLimits().model_copy(update={"queue_depth_max": 0})
COMPLETION: dict[str, Any] = {"model": "emulated", "prompt": "Hi"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
def made() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.close()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20) as client:
        yield client


def the_span(made: Spans) -> tuple[ReadableSpan, dict[str, Any]]:
    """The only span so far, with its attributes."""
    (span,) = made.ended(SPAN)
    return span, dict(span.attributes or {})


def a_trace() -> tuple[str, str]:
    """A client's trace, and the traceparent that says so."""
    trace = secrets.token_hex(16)
    return trace, f"00-{trace}-{secrets.token_hex(8)}-01"


@pytest.mark.parametrize(
    ("body", "status", "code", "model"),
    [
        ({**COMPLETION, "temperature": 9}, 400, "invalid_value", "emulated"),
        ({**COMPLETION, "model": "x" * 5000}, 400, "invalid_value", "xxx"),
        ({"model": ["no", "name"], "prompt": "Hi"}, 400, "invalid_value", None),
        ({**COMPLETION, "model": "none"}, 404, "model_not_found", "none"),
        ({**COMPLETION, "prompt": "x" * 300_000}, 413, "body_too_large", ""),
        (COMPLETION, 429, "queue_full", "emulated"),
    ],
)
async def test_what_http_refuses_has_one_span(
    cluster: Cluster,
    http: httpx.AsyncClient,
    made: Spans,
    body: Any,
    status: int,
    code: str,
    model: str | None,
) -> None:
    limits = FULL.model_copy(update={"body_bytes_max": 100_000})
    url = await cluster.gateway(limits=limits, tracer=made.tracer)
    trace, traceparent = a_trace()
    answer = await http.post(f"{url}/v1/completions", json=body, headers={"traceparent": traceparent})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    span, reported = the_span(made)
    assert reported[error_attributes.ERROR_TYPE] == code
    assert reported[http_attributes.HTTP_RESPONSE_STATUS_CODE] == status
    assert reported[http_attributes.HTTP_REQUEST_METHOD] == "POST"
    assert reported[http_attributes.HTTP_ROUTE] == "/v1/completions"
    assert (reported["gen_ai.operation.name"], reported["qlm.outcome"]) == ("text_completion", "refused")
    assert reported.get("gen_ai.request.model", "")[:3] == (model or "")[:3]
    assert len(reported.get("gen_ai.request.model", "")) < 1000
    assert failed(span) is None, "it is the client's doing, and no failure of this server"
    assert span.parent is not None and f"{span.parent.trace_id:032x}" == trace
    assert span.start_time is not None and span.end_time is not None and span.start_time <= span.end_time


async def test_a_request_that_is_not_confirmed_has_one_span_that_failed(
    cluster: Cluster, http: httpx.AsyncClient, made: Spans, faults: Faults
) -> None:
    faults.fail(BrokerUnavailableError("no connection"), "publish")
    url = await cluster.gateway(broker=flaky(cluster.broker, faults), tracer=made.tracer)
    answer = await http.post(f"{url}/v1/completions", json=COMPLETION)
    assert answer.status_code == 503
    span, reported = the_span(made)
    assert (reported[error_attributes.ERROR_TYPE], reported["http.response.status_code"]) == (
        "broker_unavailable",
        503,
    )
    assert reported["gen_ai.request.id"] and reported["gen_ai.usage.prompt_tokens"] == 2
    assert failed(span) == "the global queue is not available: no connection"


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (
            pb.GenerateRequest(model="emulated"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "missing_required_parameter",
        ),
        (pb.GenerateRequest(model="none", prompt="Hi"), grpc.StatusCode.NOT_FOUND, "model_not_found"),
        (pb.GenerateRequest(model="emulated", prompt="Hi"), grpc.StatusCode.RESOURCE_EXHAUSTED, "queue_full"),
    ],
)
async def test_what_grpc_refuses_has_one_span(
    cluster: Cluster, made: Spans, request_: pb.GenerateRequest, code: grpc.StatusCode, reason: str
) -> None:
    trace, traceparent = a_trace()
    reported = await _refused_by_grpc(
        cluster, made, request_, limits=FULL, metadata=(("traceparent", traceparent),)
    )
    span, _ = the_span(made)
    assert reported[error_attributes.ERROR_TYPE] == reason
    assert reported["rpc.grpc.status_code"] == code.value[0]
    assert (reported["rpc.system"], reported["rpc.service"], reported["rpc.method"]) == (
        "grpc",
        "qlm.v1.Qlm",
        "Generate",
    )
    assert failed(span) is None
    assert span.parent is not None and f"{span.parent.trace_id:032x}" == trace


async def test_a_call_that_is_not_confirmed_has_one_span_that_failed(
    cluster: Cluster, made: Spans, faults: Faults
) -> None:
    request = pb.GenerateRequest(
        model="emulated",
        messages=pb.Conversation(messages=[pb.Message(role="user", content="Hi")]),
    )
    faults.fail(BrokerUnavailableError("no connection"), "publish")
    reported = await _refused_by_grpc(cluster, made, request, broker=flaky(cluster.broker, faults))
    span, _ = the_span(made)
    assert reported["rpc.grpc.status_code"] == grpc.StatusCode.UNAVAILABLE.value[0]
    assert (reported[error_attributes.ERROR_TYPE], reported["gen_ai.operation.name"]) == (
        "broker_unavailable",
        "chat",
    )
    assert failed(span) == "the global queue is not available: no connection"


async def _refused_by_grpc(
    cluster: Cluster, made: Spans, request: pb.GenerateRequest, *, metadata: Any = (), **more: Any
) -> dict[str, Any]:
    async with (
        rpc_gateway(cluster, tracer=made.tracer, **more) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        with pytest.raises(aio.AioRpcError):
            async for _ in QlmStub(channel).Generate(request, metadata=metadata):
                pass
    return the_span(made)[1]


async def test_a_request_that_is_answered_has_the_span_of_one_that_was_not_refused(
    cluster: Cluster, http: httpx.AsyncClient, made: Spans
) -> None:
    url = await cluster.gateway(tracer=made.tracer)
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION)).status_code == 200
    _, reported = the_span(made)
    assert reported["qlm.outcome"] == "stop"
    assert error_attributes.ERROR_TYPE not in reported


async def test_without_a_tracer_a_refusal_is_counted_and_nothing_else(
    cluster: Cluster, http: httpx.AsyncClient
) -> None:
    url = await cluster.gateway(limits=FULL)
    assert (await http.post(f"{url}/v1/completions", json=COMPLETION)).status_code == 429
    assert (
        'qlm_gateway_refused_total{reason="queue_full",status="429"} 1.0'
        in (await http.get(f"{cluster.admin_urls[url]}/metrics")).text
    )
