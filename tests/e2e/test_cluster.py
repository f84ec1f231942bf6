"""Gateway, controller and agents as processes of their own over a real RabbitMQ and a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.cluster import Cluster, cluster
from support.qlm_process import emulated
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer
from support.rpc import Stream

TOKENS = 150
LONG = 400
"""Tokens of an answer that still runs when reports of its instance, half a second old, are acted on."""


@pytest.fixture(scope="module")
def running(rabbitmq: RabbitMQ, redis_server: RedisServer) -> Iterator[Cluster]:
    with cluster(
        rabbitmq, redis_server, emulated("mistral-7b", instances=2, time_scale=1.0), gateways=2
    ) as made:
        yield made


async def stream(url: str, n: int, seen: list[tuple[int, str]], *, tokens: int = TOKENS) -> str | None:
    """Read a completion stream into (offset, text) pairs; return how it finished, None if it broke off."""
    body = {
        "model": "mistral-7b",
        "prompt": f"story {n}",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as client,
        client.stream("POST", "/v1/completions", json=body, headers={"x-qlm-stream": "resumable"}) as answer,
    ):
        assert answer.status_code == 200
        return await collect(answer.aiter_lines(), seen)


async def collect(lines: AsyncIterator[str], seen: list[tuple[int, str]]) -> str | None:
    offset, finish = 0, None
    async for line in lines:
        if line.startswith("id: "):
            offset = int(line.removeprefix("id: "))
        elif line.startswith("data: ") and line != "data: [DONE]":
            data = json.loads(line.removeprefix("data: "))
            assert "error" not in data, data
            choice = data["choices"][0]
            seen.append((offset, choice.get("text") or ""))
            finish = choice["finish_reason"] or finish
    return finish


async def started(seen: list[tuple[int, str]], events: int) -> None:
    while True:
        if len(seen) >= events:
            return
        await asyncio.sleep(0.01)


async def reference(url: str, n: int, *, tokens: int = TOKENS) -> str:
    body = {"model": "mistral-7b", "prompt": f"story {n}", "max_tokens": tokens, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answer = await client.post("/v1/completions", json=body)
        text: str = answer.raise_for_status().json()["choices"][0]["text"]
        return text


async def submit_detached(url: str, n: int, *, tokens: int = TOKENS) -> str:
    body = {"model": "mistral-7b", "prompt": f"story {n}", "max_tokens": tokens, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        answer = await client.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})
        assert answer.status_code == 202
        return str(answer.json()["id"])


async def wait_ended(url: str, id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        while True:
            seen: dict[str, Any] = (await client.get(f"/v1/requests/{id}")).raise_for_status().json()
            if seen["status"] == "ended":
                return seen
            await asyncio.sleep(0.1)


async def busy_instance(admin_url: str) -> str:
    """Wait until some instance reports at least twelve running requests, half a second ago; return it."""
    async with httpx.AsyncClient(base_url=admin_url, timeout=120) as client:
        while True:
            listed = (await client.get("/admin/v1/instances")).json()["instances"]
            for each in listed:
                if each["running"] >= 12:
                    return str(each["id"])
            await asyncio.sleep(0.02)


async def test_kill_9_of_an_agent_under_load_loses_repeats_and_misses_nothing(running: Cluster) -> None:
    expected = await asyncio.gather(*(reference(running.url, n, tokens=LONG) for n in range(4)))
    seen: list[list[tuple[int, str]]] = [[] for _ in range(24)]
    streams = [asyncio.create_task(stream(running.url, n % 4, seen[n], tokens=LONG)) for n in range(24)]
    detached = [await submit_detached(running.url, n % 4, tokens=LONG) for n in range(24)]
    victim = await busy_instance(running.admin_url)
    running.agents[victim].kill()
    finishes = await asyncio.gather(*streams)
    records = [await wait_ended(running.url, id) for id in detached]
    running.agents[victim].start()
    assert finishes == ["length"] * 24
    for n, parts in enumerate(seen):
        offsets = [offset for offset, _ in parts]
        assert offsets == sorted(offsets)
        assert "".join(text for _, text in parts) == expected[n % 4]
    for n, record in enumerate(records):
        assert record["outcome"] == "length"
        assert record["response"]["choices"][0]["text"] == expected[n % 4]
    moved = 0
    async with httpx.AsyncClient(base_url=running.admin_url, timeout=120) as client:
        listed = (await client.get("/admin/v1/requests", params={"limit": 200})).json()["requests"]
        for each in listed:
            what = [event["what"] for event in each["events"]]
            assert what.count("ended") == 1
            moved += what.count("leased") > 1
    assert moved >= 8, "the lost agent's requests were run elsewhere"


async def test_a_stream_cut_by_a_gateways_death_resumes_on_another_gateway(running: Cluster) -> None:
    expected = await reference(running.url, 7)
    first, second = running.gateways
    seen: list[tuple[int, str]] = []
    reading = asyncio.create_task(stream(first.url, 7, seen))
    await started(seen, 10)
    async with httpx.AsyncClient(base_url=second.url, timeout=120) as client:
        listed = (await client.get(f"{second.admin_url}/admin/v1/requests", params={"limit": 1})).json()[
            "requests"
        ]
        first.kill()
        with pytest.raises(httpx.TransportError):
            await reading
        headers = {"Last-Event-ID": str(seen[-1][0])}
        async with client.stream("GET", f"/v1/requests/{listed[0]['id']}/events", headers=headers) as answer:
            assert answer.status_code == 200
            assert await collect(answer.aiter_lines(), seen) == "length"
    first.start()
    first.wait_ready(instances=1)
    assert "".join(text for _, text in seen) == expected


async def test_a_grpc_stream_cut_by_a_gateways_death_resumes_on_another_gateway(running: Cluster) -> None:
    expected = await reference(running.url, 8)
    first, second = running.gateways
    asked = pb.GenerateRequest(model="mistral-7b", prompt="story 8", max_tokens=TOKENS, ignore_eos=True)
    async with aio.insecure_channel(first.grpc_address) as channel:
        call = QlmStub(channel).Generate(asked)
        stream = await Stream().read(call, until_tokens=20)
        first.kill()
        with pytest.raises(aio.AioRpcError) as caught:
            await stream.read(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert stream.started is not None
    offset = stream.deltas[-1].offset
    assert 20 <= offset < TOKENS, "it was cut in its middle"
    async with aio.insecure_channel(second.grpc_address) as channel:
        stub = QlmStub(channel)
        rest = await Stream().read(stub.Resume(pb.ResumeRequest(id=stream.started.id, offset=offset)))
        kept = (await stub.Get(pb.GetRequest(id=stream.started.id))).answer
    first.start()
    first.wait_ready(instances=1)
    assert rest.ended is not None
    assert (rest.ended.outcome, rest.ended.usage.completion_tokens) == ("length", TOKENS)
    assert stream.text + rest.text == expected
    assert stream.token_ids + rest.token_ids == list(kept.token_ids)
    ends = [delta.offset for delta in (*stream.deltas, *rest.deltas)]
    starts = [delta.offset - len(delta.token_ids) for delta in (*stream.deltas, *rest.deltas)]
    assert [0, *ends] == [*starts, TOKENS], "each token came once"
