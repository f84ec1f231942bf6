"""The gateway over real gRPC: grpc.aio on loopback, a real store and broker, and HTTP beside it."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestState
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo
from qlm.domain.view import RequestFilter
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.rpc.server import RpcListener, RpcPortError
from qlm.gateway.rpc.service import SERVICE
from qlm.gateway.rpc.tls import TlsFiles
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from qlm.gateway.sessions.gateway import create_gateway
from support.certificates import certificate
from support.gateway import MODELS, Cluster, SystemClock, running_cluster, text_then_end, until
from support.rpc import Failure, Stream, rpc_gateway

ANSWER = "Hello, world!"
QUEUED = RequestFilter(state=RequestState.QUEUED)
ENDED = RequestFilter(state=RequestState.ENDED)
CODE = grpc.StatusCode


def completion(**more: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"model": "emulated", "prompt": "Hi", **more})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def address(cluster: Cluster) -> AsyncIterator[str]:
    async with rpc_gateway(cluster) as (made, _):
        yield made


@pytest.fixture
async def stub(address: str) -> AsyncIterator[QlmStub]:
    async with aio.insecure_channel(address) as channel:
        yield QlmStub(channel)


async def refusal(call: Any) -> Failure:
    """Wait for the status of a call that must not succeed."""
    with pytest.raises(aio.AioRpcError) as caught:
        if isinstance(call, aio.UnaryStreamCall):
            await Stream().read(call)
        else:
            await call
    failure = Failure(caught.value)
    assert failure.trailers["x-request-id"]
    return failure


# --- answers


async def test_a_prompt_is_answered_in_deltas_between_its_id_and_its_end(stub: QlmStub) -> None:
    call = stub.Generate(completion())
    stream = await Stream().read(call)
    assert stream.started is not None and stream.ended is not None
    assert dict(await call.initial_metadata())["x-request-id"] == stream.started.id
    assert (stream.started.model, stream.started.prompt_tokens) == ("emulated", 2)
    assert (stream.text, stream.token_ids) == (ANSWER, text_then_end(ANSWER))
    offsets = [delta.offset for delta in stream.deltas]
    lengths = [len(delta.token_ids) for delta in stream.deltas]
    assert offsets == [sum(lengths[: n + 1]) for n in range(len(lengths))]
    assert (stream.ended.outcome, stream.ended.finish_reason) == ("stop", "stop")
    assert stream.ended.usage == pb.Usage(prompt_tokens=2, completion_tokens=14, total_tokens=16)


async def test_prompts_may_be_token_ids_or_messages(stub: QlmStub, cluster: Cluster) -> None:
    ids = pb.GenerateRequest(model="emulated", prompt_token_ids=pb.TokenIds(ids=[72, 105]))
    assert (await Stream().read(stub.Generate(ids))).text == ANSWER
    hello = pb.Conversation(messages=[pb.Message(role="user", content="Hi")])
    chat = await Stream().read(stub.Generate(pb.GenerateRequest(model="emulated", messages=hello)))
    assert chat.started is not None
    assert chat.started.prompt_tokens == 19  # as over HTTP
    assert [request.prompt_tokens for request in cluster.agent.leased] == [2, 19]


async def test_both_doors_ask_the_same_of_the_engine(stub: QlmStub, cluster: Cluster) -> None:
    """Whatever can be asked over HTTP: the requests in the queue differ in id and arrival only."""
    sampling: dict[str, Any] = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "seed": -5, "frequency_penalty": 0.25, "presence_penalty": -0.5, "repetition_penalty": 1.1,
        "ignore_eos": True, "skip_special_tokens": False, "include_stop_str_in_output": True,
        "stop": ["END", "STOP"], "stop_token_ids": [7, 9], "priority": -3, "user": "team-a",
        "slo": {"ttft_ms": 300, "tokens_per_s": 12.5, "on_miss": "drop"},
    }  # fmt: skip
    await Stream().read(stub.Generate(completion(**sampling, logit_bias={5: -1.5})))
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        body = {"model": "emulated", "prompt": "Hi", **sampling, "logit_bias": {"5": -1.5}}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    by_rpc, by_http = cluster.agent.leased
    for name in ("prompt_ids", "sampling", "slo", "on_miss", "cls", "tenant", "answer", "detached"):
        assert getattr(by_rpc, name) == getattr(by_http, name), name


async def test_sampling_that_is_not_given_is_the_default_of_http(stub: QlmStub, cluster: Cluster) -> None:
    await Stream().read(stub.Generate(completion()))
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        body = {"model": "emulated", "prompt": "Hi"}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    by_rpc, by_http = cluster.agent.leased
    assert (by_rpc.sampling, by_rpc.slo, by_rpc.cls) == (by_http.sampling, by_http.slo, by_http.cls)


async def test_a_stop_string_ends_the_tokens_with_the_text(stub: QlmStub) -> None:
    stream = await Stream().read(stub.Generate(completion(stop=["wor"])))
    assert stream.text == "Hello, "
    assert stream.token_ids == list(b"Hello, wor")
    assert stream.ended is not None
    assert (stream.ended.finish_reason, stream.ended.usage.completion_tokens) == ("stop", 10)


async def test_a_bad_end_comes_after_the_text_as_message_and_status(stub: QlmStub, cluster: Cluster) -> None:
    cluster.agent.answer = lambda request: list(b"Half")
    cluster.agent.fail_with = (Outcome.ENGINE_LOST, "power cut")
    stream = Stream()
    with pytest.raises(aio.AioRpcError, match="power cut") as caught:
        await stream.read(stub.Generate(completion()))
    failure = Failure(caught.value)
    assert stream.started is not None and stream.ended is not None
    assert (stream.text, stream.ended.outcome) == ("Half", "engine_lost")
    assert (failure.code, failure.reason, failure.retry_ms) == (CODE.UNAVAILABLE, "engine_lost", 1000)
    assert failure.trailers["x-request-id"] == stream.started.id


# --- objectives


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        (pb.Slo(deadline_ms=5000), DeadlineSlo(deadline_ms=5000)),
        (pb.Slo(ttft_ms=400), TokenSlo(ttft_ms=400)),
        (pb.Slo(ttft_ms=400, tpot_ms=30), TokenSlo(ttft_ms=400, tpot_ms=30)),
        (pb.Slo(ttft_ms=400, tokens_per_s=10), ReadingSlo(ttft_ms=400, tokens_per_s=10)),
        (pb.Slo(reader="speech", deadline_ms=9000), ReadingSlo(ttft_ms=1000, tokens_per_s=3.3)),
        (None, DeadlineSlo(deadline_ms=60_000)),
    ],
)
async def test_each_form_of_objective_reaches_the_queue(
    stub: QlmStub, cluster: Cluster, slo: pb.Slo | None, expected: object
) -> None:
    await Stream().read(stub.Generate(completion(slo=slo)))
    assert cluster.agent.leased[0].slo == expected


async def test_a_deadline_may_be_a_moment(stub: QlmStub, cluster: Cluster) -> None:
    deadline = Timestamp()
    deadline.FromDatetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100))
    await Stream().read(stub.Generate(completion(slo=pb.Slo(deadline_at=deadline))))
    slo = cluster.agent.leased[0].slo
    assert isinstance(slo, DeadlineSlo)
    assert 50_000 < slo.deadline_ms <= 100_000


async def test_the_deadline_of_the_call_is_the_objective_of_a_request_that_names_none(
    stub: QlmStub, cluster: Cluster
) -> None:
    await Stream().read(stub.Generate(completion(), timeout=30))
    await Stream().read(stub.Generate(completion(slo=pb.Slo(on_miss="drop")), timeout=30))
    for request in cluster.agent.leased:
        assert isinstance(request.slo, DeadlineSlo)
        assert 10_000 < request.slo.deadline_ms <= 30_000 * 1.02  # gRPC rounds up, by about 1 % at most


@pytest.mark.parametrize(
    ("given", "metadata", "expected"),
    [
        ({"slo": pb.Slo(ttft_ms=400)}, (), TokenSlo(ttft_ms=400)),
        ({"service_tier": "flex"}, (), BatchSlo()),
        ({"service_tier": "priority"}, (), TokenSlo(ttft_ms=1000, tpot_ms=100)),
        ({}, (("x-slo-ttft-ms", "250"),), TokenSlo(ttft_ms=250)),
    ],
)
async def test_an_objective_that_is_named_goes_before_the_deadline_of_the_call(
    stub: QlmStub, cluster: Cluster, given: dict[str, Any], metadata: Any, expected: object
) -> None:
    await Stream().read(stub.Generate(completion(**given), timeout=30, metadata=metadata))
    assert cluster.agent.leased[0].slo == expected


async def test_a_deadline_beyond_what_an_objective_may_be_is_none(stub: QlmStub, cluster: Cluster) -> None:
    await Stream().read(stub.Generate(completion(), timeout=40 * 86_400))
    assert cluster.agent.leased[0].slo == DeadlineSlo(deadline_ms=60_000)


async def test_the_stream_ends_at_the_deadline_of_the_call(cluster: Cluster) -> None:
    cluster.agent.pause_at = 6
    async with (
        rpc_gateway(cluster, limits=GatewayLimits(resume_grace_stream_s=0)) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        for timeout_s in (0.5, 2, 8, 32):  # on a busy machine a deadline may pass before the stream begins
            stream = Stream()
            with pytest.raises(aio.AioRpcError) as caught:
                await stream.read(QlmStub(channel).Generate(completion(), timeout=timeout_s))
            assert caught.value.code() is CODE.DEADLINE_EXCEEDED
            if stream.deltas:
                break
        assert stream.text == ANSWER[:6] and stream.started is not None
        id = RequestId(stream.started.id)
        await until(lambda: cluster.agent.ended.get(id) is Outcome.CANCELLED)


# --- resuming, leaving, cancelling


async def test_a_broken_stream_goes_on_at_another_gateway(stub: QlmStub, cluster: Cluster) -> None:
    answer = "Grüße aus der Warteschlange, 日本"
    cluster.agent.answer = lambda request: text_then_end(answer)
    cluster.agent.pause_at = 9
    call = stub.Generate(completion(max_tokens=100))
    stream = await Stream().read(call, until_tokens=9)
    call.cancel()
    cluster.agent.go.set()
    assert stream.started is not None
    async with rpc_gateway(cluster) as (other, _), aio.insecure_channel(other) as channel:
        again = pb.ResumeRequest(id=stream.started.id, offset=stream.deltas[-1].offset)
        rest = await Stream().read(QlmStub(channel).Resume(again))
    assert rest.started == pb.Started(
        id=again.id,
        model="emulated",
        prompt_tokens=2,
        service_tier="default",
        offset=9,
        system_fingerprint=stream.started.system_fingerprint,
    )
    assert rest.started.system_fingerprint.startswith("qlm-")
    assert stream.text + rest.text == answer
    assert stream.token_ids + rest.token_ids == text_then_end(answer)


async def test_the_end_says_what_was_cached_and_what_ended_it(stub: QlmStub, cluster: Cluster) -> None:
    cluster.agent.cached_tokens = 1
    for fields, reason in (({"stop": ["world"]}, "stop_text"), ({"stop_token_ids": [33]}, None)):
        stream = await Stream().read(stub.Generate(completion(**fields)))
        assert stream.started is not None and stream.ended is not None
        kept = (await stub.Get(pb.GetRequest(id=stream.started.id))).answer
        for said in (stream.ended, kept):
            assert said.WhichOneof("stop_reason") == reason
            assert reason is None or said.stop_text == "world"
        if reason is None:
            assert stream.ended.usage.cached_tokens == kept.usage.cached_tokens == 1
    cluster.agent.cached_tokens = None
    unknown = await Stream().read(stub.Generate(completion()))
    assert unknown.ended is not None and not unknown.ended.usage.HasField("cached_tokens")


async def test_a_stream_begun_over_http_goes_on_over_grpc(stub: QlmStub, cluster: Cluster) -> None:
    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        made = await http.post("/v1/completions", json={"model": "emulated", "prompt": "Hi"})
    id = made.headers["x-request-id"]
    for offset in (0, 5, 14):
        rest = await Stream().read(stub.Resume(pb.ResumeRequest(id=id, offset=offset)))
        assert (rest.text, rest.token_ids) == (ANSWER[offset:], text_then_end(ANSWER)[offset:])


async def test_an_offset_beyond_the_answer_is_lost_output(stub: QlmStub) -> None:
    stream = await Stream().read(stub.Generate(completion()))
    assert stream.started is not None
    failure = await refusal(stub.Resume(pb.ResumeRequest(id=stream.started.id, offset=99)))
    assert (failure.code, failure.reason) == (CODE.UNAVAILABLE, "output_lost")


@pytest.mark.parametrize("grace_s", [0.0, 0.3])
async def test_a_client_that_cancels_its_call_cancels_its_request_after_the_grace(
    stub: QlmStub, cluster: Cluster, grace_s: float
) -> None:
    cluster.agent.pause_at = 6
    call = stub.Generate(completion(resume_grace_s=grace_s))
    await Stream().read(call, until_tokens=6)
    call.cancel()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED])


async def test_a_client_that_comes_back_in_the_grace_gets_the_rest(stub: QlmStub, cluster: Cluster) -> None:
    cluster.agent.pause_at = 6
    call = stub.Generate(completion(resume_grace_s=5))
    stream = await Stream().read(call, until_tokens=6)
    call.cancel()
    assert stream.started is not None
    resumed = stub.Resume(pb.ResumeRequest(id=stream.started.id, offset=6))
    rest = Stream()
    rest.add(await anext(aiter(resumed)))
    cluster.agent.go.set()
    assert (await rest.read(resumed)).text == ANSWER[6:]


async def test_an_idempotency_key_brings_a_retry_to_the_same_request(stub: QlmStub, cluster: Cluster) -> None:
    first = await Stream().read(stub.Generate(completion(idempotency_key="k"), timeout=30))
    async with rpc_gateway(cluster) as (other, _), aio.insecure_channel(other) as channel:
        again = await Stream().read(QlmStub(channel).Generate(completion(idempotency_key="k"), timeout=20))
    assert first.started is not None and again.started is not None
    assert (again.started.id, again.token_ids) == (first.started.id, first.token_ids)
    assert len(cluster.agent.leased) == 1
    reused = await refusal(stub.Generate(completion(idempotency_key="k", max_tokens=3)))
    assert (reused.code, reused.field) == (CODE.INVALID_ARGUMENT, "idempotency_key")
    assert reused.message.startswith('idempotency_key is "k"')


async def test_get_tells_how_a_request_stands_and_what_it_was_answered(
    stub: QlmStub, cluster: Cluster
) -> None:
    cluster.agent.pause_at = 6
    call = stub.Generate(completion(priority=2, slo=pb.Slo(ttft_ms=400, tpot_ms=30, on_miss="drop")))
    stream = await Stream().read(call, until_tokens=6)
    assert stream.started is not None
    asked = pb.GetRequest(id=stream.started.id)
    running = await stub.Get(asked)
    assert (running.request.status, running.request.instance) == ("running", "gpu-0")
    assert running.request.slo == pb.Objective(kind="token", ttft_ms=400, tpot_ms=30, on_miss="drop")
    assert (running.request.priority, running.request.HasField("ended_s")) == (2, False)
    assert not running.HasField("answer") and not running.HasField("error")
    cluster.agent.go.set()
    await stream.read(call)
    ended = await stub.Get(asked)
    assert (ended.request.status, ended.request.outcome) == ("ended", "stop")
    assert (ended.answer.text, list(ended.answer.token_ids)) == (ANSWER, text_then_end(ANSWER))
    assert (ended.answer.finish_reason, ended.answer.usage.total_tokens) == ("stop", 16)


async def test_cancel_ends_a_request_for_everybody(stub: QlmStub, cluster: Cluster) -> None:
    cluster.agent.pause_at = 6
    call = stub.Generate(completion())
    stream = await Stream().read(call, until_tokens=6)
    assert stream.started is not None
    asked = await stub.Cancel(pb.CancelRequest(id=stream.started.id))
    assert asked.request.cancel_requested
    failure = await refusal(call)
    assert (failure.code, failure.reason) == (CODE.CANCELLED, "cancelled")
    got = await stub.Get(pb.GetRequest(id=f"cmpl-{stream.started.id}"))
    assert (got.request.outcome, got.error.status, got.error.code) == ("cancelled", 1, "cancelled")
    assert got.error.message == "the request was cancelled: its client asked for that"
    assert not got.request.HasField("met")


async def test_queues_are_listed_as_over_http(stub: QlmStub, cluster: Cluster) -> None:
    cluster.agent.working.clear()
    waiting = asyncio.create_task(Stream().read(stub.Generate(completion(priority=1))))
    await until(lambda: cluster.store.records(QUEUED))
    listed = await stub.ListQueues(pb.ListQueuesRequest())
    admin_url = cluster.admin_urls[await cluster.gateway()]
    async with httpx.AsyncClient(base_url=admin_url, timeout=20) as http:
        (shown,) = (await http.get("/admin/v1/queues")).json()["classes"]
    (queue,) = listed.classes
    given = {name: value for name, value in shown.items() if value is not None}
    assert {name: getattr(queue, name) for name in given} == given
    assert (queue.queued, queue.priority) == (1, 1)
    cluster.agent.working.set()
    await waiting


# --- bad input


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
            "expected at most 62",
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


class BrokenBroker:
    """Passes everything on, but confirms nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def publish(self, queue: object, body: bytes) -> None:
        raise BrokerUnavailableError("no connection")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_without_the_queue_calls_are_unavailable_and_health_says_so(cluster: Cluster) -> None:
    broken: Any = BrokenBroker(cluster.broker)
    async with (
        rpc_gateway(cluster, broker=broken) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        failure = await refusal(QlmStub(channel).Generate(completion()))
        assert (failure.code, failure.reason, failure.retry_ms) == (
            CODE.UNAVAILABLE,
            "broker_unavailable",
            1000,
        )
        await until(lambda: health_is(channel, "NOT_SERVING"))


async def test_health_is_asked_on_after_a_failure_nobody_foresaw(cluster: Cluster) -> None:
    broken: Any = FailsOnce(cluster.broker)
    async with (
        rpc_gateway(cluster, broker=broken) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        await until(lambda: health_is(channel, "SERVING"))
    assert broken.failed


class FailsOnce:
    """Its first look at a queue ends in an error that is none of a broker's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.failed = False

    async def depth(self, queue: object) -> int:
        if not self.failed:
            self.failed = True
            raise RuntimeError("the connection is in a state nobody thought of")
        depth: int = await self._inner.depth(queue)
        return depth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SlowBroker(BrokenBroker):
    """Confirms when it is let."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def publish(self, queue: object, body: bytes) -> None:
        self.asked.set()
        await self.go.wait()
        await self._inner.publish(queue, body)


async def test_a_client_that_leaves_before_its_request_is_queued_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    """What is on its way to the queue gets there, and is then cancelled."""
    slow: Any = SlowBroker(cluster.broker)
    cluster.agent.pause_at = 6
    async with (
        rpc_gateway(cluster, broker=slow) as (address, _),
        aio.insecure_channel(address) as channel,
    ):
        stub = QlmStub(channel)
        call = stub.Generate(completion(resume_grace_s=0))
        await slow.asked.wait()
        call.cancel()
        await stub.ListQueues(pb.ListQueuesRequest())  # on its connection, so it comes after the cancel
        slow.go.set()
        await until(lambda: cluster.store.records(ENDED))
    (record,) = await cluster.store.records(ENDED)
    assert record.outcome is Outcome.CANCELLED


async def test_a_failure_of_the_gateway_is_internal_and_in_its_log(
    stub: QlmStub, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(id: RequestId) -> None:
        raise ZeroDivisionError(id)

    monkeypatch.setattr(cluster.store, "record", broken)
    failure = await refusal(stub.Get(pb.GetRequest(id="r")))
    assert (failure.code, failure.reason) == (CODE.INTERNAL, "internal_error")
    assert failure.message == "the gateway failed (ZeroDivisionError); see its log"
    (line,) = (each for each in caplog.records if each.exc_info)
    assert "ZeroDivisionError" in caplog.text
    assert getattr(line, "request_id", "") == failure.trailers["x-request-id"]


# --- the service beside the calls


async def health_is(channel: aio.Channel, status: str, service: str = SERVICE) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status


async def test_health_is_serving_once_ready_and_not_when_stopping(cluster: Cluster) -> None:
    async with (
        rpc_gateway(cluster, shutdown_s=5) as (address, listener),
        aio.insecure_channel(address) as channel,
    ):
        await until(lambda: health_is(channel, "SERVING"))
        await until(lambda: health_is(channel, "SERVING", ""))
        asked = health_pb2.HealthCheckRequest(service=SERVICE)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(asked)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(listener.stop(0, 0.1))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


async def test_a_gateway_that_stops_tells_its_streams_to_go_on_elsewhere(cluster: Cluster) -> None:
    cluster.agent.pause_at = 6
    async with (
        rpc_gateway(cluster) as (address, listener),
        rpc_gateway(cluster) as (other, _),
        aio.insecure_channel(address) as channel,
        aio.insecure_channel(other) as second,
    ):
        call = QlmStub(channel).Generate(completion())
        stream = await Stream().read(call, until_tokens=6)
        await listener.stop(0, 0.05)
        failure = await refusal(call)
        assert (failure.code, failure.reason) == (CODE.UNAVAILABLE, "gateway_stopping")
        assert stream.started is not None
        resumed = QlmStub(second).Resume(pb.ResumeRequest(id=stream.started.id, offset=6))
        cluster.agent.go.set()
        assert stream.text + (await Stream().read(resumed)).text == ANSWER


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_the_service_and_describes_its_calls(address: str, version: str) -> None:
    async with aio.insecure_channel(address) as channel:
        asked = reflection_pb2.ServerReflectionRequest
        call: Any = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=asked.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(iter((asked(list_services=""), asked(file_containing_symbol="qlm.v1.Qlm"))))
        listed, described = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    (file, *_) = described.file_descriptor_response.file_descriptor_proto
    assert file == pb.DESCRIPTOR.serialized_pb


async def test_metrics_count_calls_as_they_count_http(cluster: Cluster) -> None:
    async with rpc_gateway(cluster) as (address, listener), aio.insecure_channel(address) as channel:
        await Stream().read(QlmStub(channel).Generate(completion()))
        shown = metrics_of(listener)
        await until(lambda: "qlm_gateway_open_streams 0.0" in metrics_of(listener))
    for line in (
        'qlm_gateway_accepted_total{kind="stream",model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_requests_total{model="emulated",outcome="stop",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_time_to_first_token_seconds_count{model="emulated",slo_class="deadline-60s"} 1.0',
        'qlm_gateway_tokens_total{model="emulated",side="completion"} 14.0',
    ):
        assert line in shown


def metrics_of(listener: RpcListener) -> str:
    return listener.gateway.metrics.render().decode()


# --- TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


async def test_tls_by_files_is_what_clients_verify(cluster: Cluster, pair: tuple[Path, Path]) -> None:
    cert, key = (path.read_bytes() for path in pair)
    async with rpc_gateway(cluster, tls=TlsFiles(cert=cert, key=key)) as (address, _):
        port = address.rpartition(":")[2]
        async with aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(cert)) as channel:
            assert (await Stream().read(QlmStub(channel).Generate(completion()))).text == ANSWER
        async with aio.insecure_channel(address) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await Stream().read(QlmStub(channel).Generate(completion()))
            assert caught.value.code() is CODE.UNAVAILABLE


async def test_a_port_in_use_is_an_error(cluster: Cluster, address: str) -> None:
    gateway = create_gateway(
        MODELS, cluster.broker, cluster.store, SystemClock(), GatewayLimits(), GatewayId("g"), _no_id
    )
    listener = RpcListener(gateway)
    with pytest.raises(RpcPortError, match=address):
        await listener.start("127.0.0.1", int(address.rpartition(":")[2]))
    await listener.stop(0, 0)


def _no_id() -> RequestId:
    raise AssertionError("no request comes here")
