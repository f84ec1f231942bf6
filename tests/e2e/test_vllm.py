"""QLM over a real vLLM: the answers of the engine itself, through queues, evictions and resumes."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from grpc import aio

from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.rpc.v1.qlm_pb2_grpc import QlmStub
from support.cluster import Cluster, cluster
from support.qlm_process import QlmProcess, serving
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer
from support.rpc import Stream
from support.vllm_cpu import VllmOptions, VllmServer, running_vllm, tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.alone, pytest.mark.timeout(400)]

MIXED = 50
EVICTED_TOKENS = 480
_WORDS = "the queue holds what waits until its turn has come and no request is lost"


def attached(servers: list[VllmServer], *, seqs_max: int) -> dict[str, Any]:
    """Write the configuration of instances that attach to running vLLM servers."""
    model = {"id": "tiny", "engine": "vllm", "path": str(tiny_model()), "context_tokens": 2048}
    instances = [
        {
            "id": f"cpu-{n}",
            "accelerator": "CPU",
            "models": ["tiny"],
            "url": server.base_url,
            "seqs_max": seqs_max,
        }
        for n, server in enumerate(servers)
    ]
    return {"models": [model], "instances": instances}


def evicting(servers: list[VllmServer], *, seqs_max: int) -> dict[str, Any]:
    """The same, where whoever cannot be in time still pushes others out: a CPU answers nobody in 50 ms."""
    return {**attached(servers, seqs_max=seqs_max), "operations": {"demote": False}}


# --- 50 mixed requests through RabbitMQ, Redis and two replicas


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[VllmServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running_vllm(VllmOptions(max_num_seqs=8))) for _ in range(2)]


@pytest.fixture(scope="module")
def running(rabbitmq: RabbitMQ, redis_server: RedisServer, replicas: list[VllmServer]) -> Iterator[Cluster]:
    with cluster(rabbitmq, redis_server, attached(replicas, seqs_max=8)) as made:
        yield made


def mixed_bodies(rng: random.Random) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Draw (path, body for vLLM, what QLM gets besides): chat and completion, with and without objectives."""
    words = _WORDS.split()
    slos: list[dict[str, Any]] = [
        {},
        {"slo": {"deadline_ms": 60_000}},
        {"slo": {"ttft_ms": 5_000, "tpot_ms": 500}},
        {"service_tier": "flex"},
    ]
    bodies = []
    for n in range(MIXED):
        text = " ".join(rng.choice(words) for _ in range(rng.randint(2, 60)))
        common = {"model": "tiny", "temperature": 0, "max_tokens": rng.randint(4, 60)}
        if n % 2:
            bodies.append(("/v1/completions", {**common, "prompt": text}, slos[n % 4]))
        else:
            messages = [{"role": "user", "content": text}]
            bodies.append(("/v1/chat/completions", {**common, "messages": messages}, slos[(n // 2) % 4]))
    return bodies


def outcome_of(answer: dict[str, Any]) -> tuple[str, str, dict[str, int]]:
    """Text, finish reason and token counts of an OpenAI answer."""
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    usage = {key: answer["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return text, choice["finish_reason"], usage


async def through_qlm(
    client: httpx.AsyncClient, n: int, path: str, body: dict[str, Any]
) -> tuple[str, str, dict[str, int]]:
    """Ask QLM plainly, streamed, or asynchronously, by turns."""
    if n % 3 == 0:
        return outcome_of((await client.post(path, json=body)).raise_for_status().json())
    if n % 3 == 1:
        return await streamed(client, path, body)
    accepted = await client.post(path, json=body, headers={"Prefer": "respond-async"})
    assert accepted.status_code == 202
    return outcome_of((await ended(client, accepted.json()["id"]))["response"])


async def streamed(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> tuple[str, str, dict[str, int]]:
    text, finish, usage = "", "", {}
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=whole) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line.removeprefix("data: "))
            if data["choices"]:
                choice = data["choices"][0]
                text += (choice.get("text") if "text" in choice else choice["delta"].get("content")) or ""
                finish = choice["finish_reason"] or finish
            if data.get("usage"):
                usage = {key: data["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return text, finish, usage


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    while True:
        seen: dict[str, Any] = (await client.get(f"/v1/requests/{id}")).raise_for_status().json()
        if seen["status"] == "ended":
            return seen
        await asyncio.sleep(0.05)


async def test_50_mixed_requests_get_the_answers_of_the_engine_itself(
    running: Cluster, replicas: list[VllmServer]
) -> None:
    bodies = mixed_bodies(random.Random(5))
    async with httpx.AsyncClient(base_url=running.url, timeout=200) as client:
        got = await asyncio.gather(
            *(through_qlm(client, n, path, {**body, **more}) for n, (path, body, more) in enumerate(bodies))
        )
        listed = (await client.get(f"{running.admin_url}/admin/v1/requests", params={"limit": 200})).json()[
            "requests"
        ]
    instances = {
        event["instance"] for each in listed for event in each["events"] if event["what"] == "leased"
    }
    assert instances == {"cpu-0", "cpu-1"}, "both replicas served"
    async with httpx.AsyncClient(base_url=replicas[0].base_url, timeout=200) as direct:
        for (path, body, _), answer in zip(bodies, got, strict=True):
            expected = outcome_of((await direct.post(path, json=body)).raise_for_status().json())
            assert answer == expected, (path, body)


async def by_rpc(
    stub: QlmStub, path: str, body: dict[str, Any]
) -> tuple[tuple[str, str, dict[str, int]], list[int]]:
    """Ask through the gRPC door what a body for HTTP asks."""
    body = dict(body)
    if path.endswith("chat/completions"):
        messages = [pb.Message(**message) for message in body.pop("messages")]
        body["messages"] = pb.Conversation(messages=messages)
    stream = await Stream().read(stub.Generate(pb.GenerateRequest(**body)))
    assert stream.ended is not None
    usage = {key: getattr(stream.ended.usage, key) for key in ("prompt_tokens", "completion_tokens")}
    return (stream.text, stream.ended.finish_reason, usage), stream.token_ids


async def test_both_doors_give_the_same_greedy_answers_token_by_token(running: Cluster) -> None:
    bodies = [(path, body) for path, body, _ in mixed_bodies(random.Random(6))[:16]]
    async with (
        httpx.AsyncClient(base_url=running.url, timeout=200) as client,
        aio.insecure_channel(running.gateways[0].grpc_address) as channel,
    ):
        stub = QlmStub(channel)
        rpc = await asyncio.gather(*(by_rpc(stub, path, body) for path, body in bodies))
        for (path, body), (answer, token_ids) in zip(bodies, rpc, strict=True):
            response = (await client.post(path, json=body)).raise_for_status()
            assert answer == outcome_of(response.json()), (path, body)
            kept = await stub.Get(pb.GetRequest(id=response.headers["x-request-id"]))
            assert token_ids == list(kept.answer.token_ids), (path, body)
            assert len(token_ids) == answer[2]["completion_tokens"]


# --- evict and resume


async def submit(client: httpx.AsyncClient, prompt: str, tokens: int, **more: Any) -> str:
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more
    }  # fmt: skip
    accepted = await client.post("/v1/completions", json=body, headers={"Prefer": "respond-async"})
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["id"])


async def history(admin_url: str, id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=admin_url, timeout=200) as client:
        seen: dict[str, Any] = (await client.get(f"/admin/v1/requests/{id}")).raise_for_status().json()
        return seen


def times(seen: dict[str, Any], what: str) -> int:
    return sum(event["what"] == what for event in seen["events"])


def under_way(seen: dict[str, Any], tokens: int) -> bool:
    running: bool = seen["status"] == "running" and seen["output_tokens"] >= tokens
    ended: bool = seen["status"] == "ended"
    return running or ended


async def at_least(admin_url: str, ids: list[str], tokens: int) -> None:
    """Wait until each request runs and has that many output tokens, or has ended."""
    while True:
        seen = [await history(admin_url, id) for id in ids]
        if all(under_way(each, tokens) for each in seen):
            return
        await asyncio.sleep(0.02)


async def evict_twice(
    process: QlmProcess, client: httpx.AsyncClient, prompts: list[str]
) -> list[dict[str, Any]]:
    """Run batch requests that fill the engine; push each of them out twice by urgent ones."""
    await ended(client, await submit(client, "warm up the pace of this engine", 60))
    ids = [await submit(client, prompt, EVICTED_TOKENS, service_tier="flex") for prompt in prompts]
    for mark in (60, 220):
        await at_least(process.admin_url, ids, mark)
        urgent = [
            await submit(client, f"urgent {mark} {n}", 8, slo={"deadline_ms": 50})
            for n in range(len(prompts))
        ]
        await asyncio.gather(*(ended(client, id) for id in urgent))
    return [{**await ended(client, id), **await history(process.admin_url, id)} for id in ids]


async def direct_text(server: VllmServer, prompt: str) -> str:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": EVICTED_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    async with httpx.AsyncClient(base_url=server.base_url, timeout=200) as client:
        answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
        text: str = answer["choices"][0]["text"]
        return text


@pytest.fixture
def one_replica(replicas: list[VllmServer], request: pytest.FixtureRequest) -> Iterator[QlmProcess]:
    """QLM on one replica, of which it uses as many places as the test asks for."""
    with serving(evicting(replicas[:1], seqs_max=request.param)) as process:
        yield process


@pytest.mark.parametrize("one_replica", [1, 8], indirect=True, ids=["alone", "eight-running"])
async def test_evicted_twice_a_greedy_answer_is_token_identical_in_float32(
    one_replica: QlmProcess, replicas: list[VllmServer], request: pytest.FixtureRequest
) -> None:
    places = request.node.callspec.params["one_replica"]
    prompts = [f"tell the story number {n} again" for n in range(places)]
    expected = [await direct_text(replicas[0], prompt) for prompt in prompts]
    async with httpx.AsyncClient(base_url=one_replica.url, timeout=200) as client:
        evictions: list[int] = []
        for _ in range(5):
            seen = await evict_twice(one_replica, client, prompts)
            assert [each["response"]["choices"][0]["text"] for each in seen] == expected
            assert {each["response"]["usage"]["completion_tokens"] for each in seen} == {EVICTED_TOKENS}
            evictions = [times(each, "evicted") for each in seen]
            if max(evictions) >= 2 and sum(evictions) >= places:
                # An abort that lost the race to the end is repeated with fresh requests.
                break
    assert max(evictions) >= 2, evictions
    assert sum(evictions) >= places, evictions


async def test_in_bfloat16_an_eviction_loses_and_repeats_nothing_and_keeps_what_was_shown() -> None:
    options = VllmOptions(dtype="bfloat16", max_num_seqs=1)
    with running_vllm(options) as server, serving(evicting([server], seqs_max=1)) as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=200) as client:
            await ended(client, await submit(client, "warm up the pace of this engine, please", 60))
            shown: list[str] = []
            body = {
                "model": "tiny", "prompt": "tell the story once more and then again",
                "max_tokens": EVICTED_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
                "service_tier": "flex",
            }  # fmt: skip
            before = ""
            evictions = 0
            id = ""
            resumable = {"x-qlm-stream": "resumable"}
            async with client.stream("POST", "/v1/completions", json=body, headers=resumable) as answer:
                id = answer.headers["x-request-id"]
                offsets = [0]
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        offsets.append(int(line.removeprefix("id: ")))
                    if not line.startswith("data: {"):
                        continue
                    shown.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
                    if offsets[-1] >= 60 and not before:
                        before = "".join(shown)
                        urgent = await submit(
                            client, "urgent and short enough to be quick", 8, slo={"deadline_ms": 50}
                        )
                        await ended(client, urgent)
            final = await ended(client, id)
            evictions = times(await history(process.admin_url, id), "evicted")
    assert evictions >= 1
    assert offsets == sorted(offsets)
    assert offsets[-1] == EVICTED_TOKENS
    text = final["response"]["choices"][0]["text"]
    assert "".join(shown) == text
    assert text.startswith(before)
    assert final["response"]["usage"]["completion_tokens"] == EVICTED_TOKENS
