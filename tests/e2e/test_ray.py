"""Agents as actors of a real Ray: placed by accelerator, restarted, stopped without a trace."""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from qlm.cli.runtime.monitor import PORTS
from support.cluster_load import Streamed, read_stream
from support.cluster_load import until as until_within
from support.exposition import problems, read
from support.ports import free_port
from support.qlm_process import QlmProcess
from support.rabbitmq import RabbitMQ
from support.ray_agents import READY_S, below, left, need_ray, open_to_others, part, placed
from support.redis import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

MODEL, PROMPTS, TOKENS = "rayed", 4, 150
MONITOR_PORT = free_port()


def config(rabbitmq: RabbitMQ, redis: RedisServer, *instances: tuple[str, str]) -> dict[str, Any]:
    return {
        "broker": rabbitmq.url,
        "store": redis.url,
        "deployment_name": f"ray-{secrets.token_hex(4)}",
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [
            {"id": id, "accelerator": kind, "models": [MODEL], "seqs_max": 16} for id, kind in instances
        ],
        "ray": {"resources": {"H100": {"GPU": 1000}}},
        "monitor": {"port": MONITOR_PORT},
    }


@pytest.fixture(scope="module")
def serving(rabbitmq: RabbitMQ, redis_server: RedisServer) -> Iterator[QlmProcess]:
    three = config(rabbitmq, redis_server, ("small", "A10"), ("large", "A100"), ("homeless", "H100"))
    with need_ray() as folder:
        process = part("serve", "serve", "--runtime", "ray", config=three, folder=folder)
        process.start()
        try:
            process.wait_ready(instances=2, timeout_s=READY_S)
            yield process
        finally:
            if process.alive:
                process.terminate(timeout_s=40)
            process.close()


def body(n: int, **more: Any) -> dict[str, Any]:
    whole = {"model": MODEL, "prompt": f"story {n % PROMPTS}", "max_tokens": TOKENS, "ignore_eos": True}
    return whole | more


async def until(holds: Callable[[], Any], what: str) -> None:
    await until_within(holds, what, timeout_s=READY_S)


async def listed(serving: QlmProcess, http: httpx.AsyncClient, what: str) -> dict[str, dict[str, Any]]:
    url = f"{serving.admin_url}/admin/v1/{what}"
    found = (await http.get(url, params={"limit": 500})).raise_for_status().json()[what]
    return {each["id"]: each for each in found}


async def test_what_fits_serves_and_what_fits_nowhere_is_reported(serving: QlmProcess) -> None:
    async with httpx.AsyncClient(base_url=serving.url, timeout=120) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=body(n, max_tokens=20)) for n in range(20))
        )
        assert [answer.status_code for answer in answers] == [200] * 20
        up = {id: each["active_model"] for id, each in (await listed(serving, http, "instances")).items()}
        assert up == {"small": MODEL, "large": MODEL}
    assert set(placed(serving.log())) == {"small", "large"}
    reported = "homeless waits for a place: no node offers GPU: 1000; 127.0.0.1 has accelerator_type:A10"
    await until(lambda: reported in serving.log(), "why an instance has no agent")


async def test_each_actor_tells_of_its_instance(serving: QlmProcess) -> None:
    reported = set()
    async with httpx.AsyncClient(timeout=120) as http:
        for port in range(MONITOR_PORT, MONITOR_PORT + PORTS):
            with contextlib.suppress(httpx.TransportError):
                text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
                assert problems(text) == []
                states = read(text)["qlm_agent_engine_state"].samples
                reported |= {each.labels["qlm_instance"] for each in states if each.value}
                assert (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    assert reported == {"small", "large"}


async def test_kill_9_of_an_agents_process_under_load_costs_no_answer(serving: QlmProcess) -> None:
    async with httpx.AsyncClient(base_url=serving.url, timeout=120) as http:

        async def text(n: int) -> str:
            answer = (await http.post("/v1/completions", json=body(n))).raise_for_status().json()
            return str(answer["choices"][0]["text"])

        async def stream(into: Streamed) -> None:
            asked, resumable = body(into.n, stream=True), {"x-qlm-stream": "resumable"}
            async with http.stream("POST", "/v1/completions", json=asked, headers=resumable) as answer:
                assert answer.status_code == 200
                await read_stream(answer.aiter_lines(), into)

        async def busy() -> bool:
            running = (await listed(serving, http, "instances"))["large"]["running"] >= 8
            return running and sum(len(each.parts) > 4 for each in streams) >= 8

        expected = await asyncio.gather(*(text(n) for n in range(PROMPTS)))
        streams = [Streamed(n) for n in range(24)]
        reading = [asyncio.create_task(stream(each)) for each in streams]
        detached = {}
        for n in range(72):  # so many that the small instance, three times as slow, is worth its while
            answer = await http.post("/v1/completions", json=body(n), headers={"Prefer": "respond-async"})
            detached[answer.json()["id"]] = n
        await until(busy, "the large instance is busy")
        victim = placed(serving.log())["large"]
        engine = below(victim)
        assert engine
        os.kill(victim, signal.SIGKILL)
        await until(lambda: not left(engine), "no engine survives its agent")
        await asyncio.gather(*reading)
        for each in streams:
            assert (each.finish, each.text) == ("length", expected[each.n % PROMPTS])

        async def ended() -> bool:
            requests = await listed(serving, http, "requests")
            return all(requests[id]["status"] == "ended" for id in detached)

        await until(ended, "what was accepted is answered")
        moved, ran = 0, set()
        for id, history in (await listed(serving, http, "requests")).items():
            what = [event["what"] for event in history["events"]]
            assert what.count("ended") == 1
            moved += what.count("leased") > 1
            ran |= {event["instance"] for event in history["events"] if event["what"] == "leased"}
            if id in detached:
                record = (await http.get(f"/v1/requests/{id}")).json()
                assert record["response"]["choices"][0]["text"] == expected[detached[id] % PROMPTS]
        assert moved >= 8, "the lost agent's requests ran again"
        assert ran == {"small", "large"}

        async def back() -> bool:
            again = placed(serving.log())["large"]
            found = (await listed(serving, http, "instances")).get("large", {})
            return again != victim and bool(found.get("active_model")) and bool(below(again))

        await until(back, "Ray has started another process of the agent, and it an engine")


def test_stopping_leaves_no_process_of_ours_or_of_rays(serving: QlmProcess) -> None:
    running = below(serving.pid)
    assert not open_to_others(running)
    assert len(running) >= 8, "raylet, its helpers, two agents with guards and engines"
    serving.terminate(timeout_s=40)
    assert serving.exit_code in (0, None), serving.log()
    assert not left(running)
