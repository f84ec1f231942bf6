"""What a gateway refuses over gRPC."""

import asyncio
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, until
from support.rpc import Failure, Stream, rpc_gateway
from support.rpc_calls import CODE, QUEUED, completion, refusal


@pytest.mark.parametrize(
    ("request_", "code", "field", "words"),
    [
        (completion(model="nope"), CODE.NOT_FOUND, "model", 'model is "nope"; expected one of emulated, sm'),
        (completion(model=""), CODE.INVALID_ARGUMENT, "model", "model is missing"),
        (completion(prompt=""), CODE.INVALID_ARGUMENT, "prompt", 'prompt is ""; expected a prompt of at lea'),
        (pb.GenerateRequest(model="emulated"), CODE.INVALID_ARGUMENT, "prompt", "prompt_token_ids or mess"),
        (
            pb.GenerateRequest(model="emulated", prompt_token_ids=pb.TokenIds()),
            CODE.INVALID_ARGUMENT,
            "prompt_token_ids",
            "prompt_token_ids is []; expected",
        ),
        (
            pb.GenerateRequest(model="emulated", prompt_token_ids=pb.TokenIds(ids=[5, 3000])),
            CODE.INVALID_ARGUMENT,
            "prompt_token_ids",
            "prompt_token_ids is 3000; expected token ids below",
        ),
        (
            pb.GenerateRequest(model="emulated", messages=pb.Conversation()),
            CODE.INVALID_ARGUMENT,
            "messages",
            "messages is []",
        ),
        (
            pb.GenerateRequest(
                model="emulated", messages=pb.Conversation(messages=[pb.Message(role="tool", content="x")])
            ),
            CODE.INVALID_ARGUMENT,
            "messages[0].role",
            'messages[0].role is "tool"',
        ),
        (completion(slo=pb.Slo(deadline_ms=-1)), CODE.INVALID_ARGUMENT, "slo.deadline_ms", "is -1.0; expec"),
        (completion(slo=pb.Slo(tpot_ms=1)), CODE.INVALID_ARGUMENT, "slo", "expected deadline_ms, or"),
        (
            completion(slo=pb.Slo(deadline_at=Timestamp(seconds=1))),
            CODE.INVALID_ARGUMENT,
            "slo.deadline_at",
            "a time in the next 30 days",
        ),
        (
            completion(slo=pb.Slo(on_miss="x")),
            CODE.INVALID_ARGUMENT,
            "slo.on_miss",
            "'serve' or 'drop'",
        ),
        (completion(temperature=9), CODE.INVALID_ARGUMENT, "temperature", "temperature is 9.0"),
        (completion(temperature=float("nan")), CODE.INVALID_ARGUMENT, "temperature", "temperature is nan; "),
        (completion(max_tokens=0), CODE.INVALID_ARGUMENT, "max_tokens", "max_tokens is 0"),
        (completion(priority=99), CODE.INVALID_ARGUMENT, "priority", "priority is 99"),
        (completion(service_tier="x"), CODE.INVALID_ARGUMENT, "service_tier", 'service_tier is "x"'),
        (
            completion(model="small", max_tokens=100),
            CODE.INVALID_ARGUMENT,
            "max_tokens",
            "expected at most 64",
        ),
        (
            completion(more=Struct(fields={"frequency": Value(number_value=float("nan"))})),
            CODE.INVALID_ARGUMENT,
            "more",
            "expected finite numbers",
        ),
        (
            completion(idempotency_key="k" * 300),
            CODE.INVALID_ARGUMENT,
            "idempotency_key",
            "idempotency_key has 300 characters",
        ),
    ],
)
async def test_bad_requests_name_their_field_and_nothing_is_queued(
    stub: QlmStub, cluster: Cluster, request_: pb.GenerateRequest, code: CODE, field: str, words: str
) -> None:
    failure = await refusal(stub.Generate(request_))
    assert (failure.code, failure.field) == (code, field)
    assert words in failure.message
    assert await cluster.broker.queues() == []


async def test_metadata_that_is_wrong_is_named(stub: QlmStub) -> None:
    failure = await refusal(stub.Generate(completion(), metadata=(("x-slo-ttft-ms", "soon"),)))
    assert (failure.code, failure.field) == (CODE.INVALID_ARGUMENT, "x-slo-ttft-ms")


async def test_an_objective_that_comes_twice_is_refused_unless_both_are_equal(
    stub: QlmStub, cluster: Cluster
) -> None:
    twice = (("x-qlm-deadline-ms", "5000"), ("x-qlm-deadline-ms", "90000"))
    failure = await refusal(stub.Generate(completion(), metadata=twice))
    assert (failure.code, failure.field) == (CODE.INVALID_ARGUMENT, "x-qlm-deadline-ms")
    assert "'5000, 90000'" in failure.message
    assert await cluster.broker.queues() == []
    assert (await Stream().read(stub.Generate(completion(), metadata=(twice[0], twice[0])))).ended


async def test_a_message_beyond_the_limit_is_refused_with_the_limits_name(cluster: Cluster) -> None:
    async with (
        rpc_gateway(cluster, limits=GatewayLimits(body_bytes_max=1024)) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        stub = QlmStub(channel)
        failure = await refusal(stub.Generate(completion(prompt="x" * 2000)))
        assert (failure.code, failure.reason, failure.retry_ms) == (
            CODE.RESOURCE_EXHAUSTED,
            "body_too_large",
            0,
        )
        assert "expected at most 1024 (limits.body_bytes_max)" in failure.message
        with pytest.raises(aio.AioRpcError) as caught:
            await Stream().read(stub.Generate(completion(prompt="x" * 10_000)))
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED, "far beyond it, gRPC itself does not read it"
    assert await cluster.broker.queues() == []


METHODS = (
    "qlm.v1.Qlm/Generate",
    "qlm.v1.Qlm/Get",
    "qlm.v1.Qlm/ListQueues",
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        *((each, b"\x0a\xff\xff\xff\xff\x0f") for each in METHODS),
        ("qlm.v1.Qlm/Generate", b"\x0a\x02\xff\xfe"),
        ("qlm.v1.Qlm/Resume", b"\x0b" * 200),
    ],
)
async def test_a_message_that_cannot_be_read_is_refused_without_a_line_in_the_log(
    address: str, method: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.insecure_channel(address) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            raw: Any = channel.unary_stream(f"/{method}")
            async for _ in raw(data, timeout=20):
                pass
    failure = Failure(caught.value)
    assert (failure.code, failure.reason) == (CODE.INVALID_ARGUMENT, "invalid_message")
    assert failure.message.startswith("the message cannot be read: ") and failure.trailers["x-request-id"]
    assert caplog.records == []


@pytest.mark.parametrize("call", ["Get", "Cancel", "Resume"])
async def test_unknown_requests_are_not_found(stub: QlmStub, call: str) -> None:
    message = {"Get": pb.GetRequest, "Cancel": pb.CancelRequest, "Resume": pb.ResumeRequest}[call]
    failure = await refusal(getattr(stub, call)(message(id="nobody")))
    assert (failure.code, failure.reason) == (CODE.NOT_FOUND, "request_not_found")
    failure = await refusal(getattr(stub, call)(message()))
    assert (failure.code, failure.field) == (CODE.INVALID_ARGUMENT, "id")


async def test_a_full_queue_says_when_to_come_back(cluster: Cluster) -> None:
    limits = GatewayLimits(queue_depth_max=1, view_interval_s=0.01, retry_after_max_s=2.5)
    cluster.agent.working.clear()
    async with (
        rpc_gateway(cluster, limits=limits) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        stub = QlmStub(channel)
        first = asyncio.create_task(Stream().read(stub.Generate(completion())))
        await until(lambda: cluster.store.records(QUEUED))
        failure = await refusal(stub.Generate(completion()))
        assert (failure.code, failure.reason) == (CODE.RESOURCE_EXHAUSTED, "queue_full")
        assert failure.retry_ms == 2500
        assert failure.trailers["retry-after-ms"] == "2500"
        assert failure.trailers["x-llm-d-request-dropped-reason"] == "queue_full"
        cluster.agent.working.set()
        await first
