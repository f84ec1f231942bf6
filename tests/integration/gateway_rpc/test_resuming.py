"""Streams over gRPC that are resumed, left or cancelled; requests that are asked about."""

import asyncio

import httpx
import pytest
from grpc import aio

from qlm.domain.outcome import Outcome
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, text_then_end, until
from support.rpc import Stream, rpc_gateway
from support.rpc_calls import ANSWER, CODE, QUEUED, completion, refusal


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
