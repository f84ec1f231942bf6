"""Answers over gRPC, and objectives as they reach the queue."""

import datetime
from typing import Any

import httpx
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.gateway import Cluster, text_then_end, until
from support.rpc import Failure, Stream, rpc_gateway
from support.rpc_calls import ANSWER, CODE, completion


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
        "stop": ["END", "STOP"], "stop_token_ids": [7, 9], "priority": -3, "user": "team-a" * 20,
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
