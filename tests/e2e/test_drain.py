"""`qlm drain` on real processes: work moves on, the agent leaves with exit code 0, and may come back."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.cluster import Cluster, cluster
from support.gateway import until
from support.qlm_process import QLM, emulated, serving
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

TOKENS = 800
"""Takes ten seconds: some are still running when the drain is asked for."""

MODEL = "mistral-7b"


@pytest.fixture
def running(rabbitmq: RabbitMQ, redis_server: RedisServer) -> Iterator[Cluster]:
    with cluster(rabbitmq, redis_server, emulated(MODEL, instances=2, time_scale=1.0)) as made:
        yield made


def body(n: int, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": f"story {n}", "max_tokens": TOKENS, "ignore_eos": True, **more}


def qlm(admin_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(QLM), *words, "--url", admin_url]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


async def listed(admin_url: str, what: str, **where: Any) -> dict[str, dict[str, Any]]:
    async with httpx.AsyncClient(base_url=admin_url, timeout=120) as http:
        found = (await http.get(f"/admin/v1/{what}", params=where)).raise_for_status().json()[what]
    return {each["id"]: each for each in found}


async def test_a_drained_instance_gives_its_work_back_and_its_agent_ends_well(running: Cluster) -> None:
    async with httpx.AsyncClient(base_url=running.url, timeout=120) as http:

        async def ask(n: int, **more: Any) -> str:
            answer = (await http.post("/v1/completions", json=body(n, **more))).raise_for_status()
            return str(answer.json()["choices"][0]["text"])

        expected = await asyncio.gather(ask(0), ask(1))
        answers = [asyncio.create_task(ask(n % 2)) for n in range(16)]
        # It cannot be resumed exactly, so it stays where it has begun until it is through.
        pinned = asyncio.create_task(ask(0, frequency_penalty=0.5, max_tokens=1600, priority=-5))
        holder: list[str] = []

        async def pinned_runs() -> bool:
            requests = await listed(running.admin_url, "requests", state="running")
            holder[:] = [
                each["instance"]
                for each in requests.values()
                if each["evictability"] == "pinned" and each["output_tokens"] > 0
            ]
            return bool(holder)

        await until(pinned_runs, 60)
        (instance,) = holder
        agent = running.agents[instance]
        parked: list[str] = []

        async def others_are_here() -> bool:
            """Ask more, as the group of the first ones may be on the other instance."""
            requests = await listed(running.admin_url, "requests", state="running")
            parked[:] = [id for id, each in requests.items() if each["instance"] == instance]
            if len(parked) < 2:
                answers.append(asyncio.create_task(ask(len(answers) % 2)))
            return len(parked) > 1

        await until(others_are_here, 30)

        asked = await asyncio.to_thread(qlm, running.admin_url, "drain", instance)
        assert (asked.returncode, asked.stdout) == (
            0,
            f"{instance} is draining: `qlm instances` no longer lists it when it is done\n",
        )

        async def shown() -> bool:
            found = await listed(running.admin_url, "instances")
            return instance in found and found[instance]["draining"] and found[instance]["running"] == 1

        await until(shown, 30)
        table = await asyncio.to_thread(qlm, running.admin_url, "instances")
        assert "draining" in table.stdout
        assert await asyncio.gather(*answers) == [expected[n % 2] for n in range(len(answers))]
        assert len(await pinned) > 0
        await until(lambda: not agent.alive, 30)
        assert agent.exit_code == 0, agent.log()
        assert instance not in await listed(running.admin_url, "instances")
        reported = [
            event["why"]
            for id, each in (await listed(running.admin_url, "requests")).items()
            for event in each["events"]
            if id in parked and event["what"] == "returned"
        ]
        assert reported.count("draining") >= 1

        again = await asyncio.to_thread(qlm, running.admin_url, "drain", instance)
        assert (again.returncode, again.stderr) == (1, f"qlm: no live instance {instance}\n")
        assert await ask(1) == expected[1], "the other instance serves on"

        agent.close()
        agent.start()

        async def back() -> bool:
            found = await listed(running.admin_url, "instances")
            return instance in found and bool(found[instance]["active_model"])

        await until(back, 60)
        assert not (await listed(running.admin_url, "instances"))[instance]["draining"], (
            "a new life is not asked to leave"
        )


def test_qlm_serve_goes_on_without_the_drained_instance() -> None:
    with serving(emulated(MODEL, instances=2)) as process:
        assert qlm(process.admin_url, "drain", "i0").returncode == 0

        async def one_left() -> bool:
            return list(await listed(process.admin_url, "instances")) == ["i1"]

        asyncio.run(until(one_left, 30))
        answer = httpx.post(f"{process.url}/v1/completions", json=body(0, max_tokens=20), timeout=120)
        assert answer.status_code == 200
        assert process.alive
        shown = qlm(process.admin_url, "instances", "--json")
        assert [each["id"] for each in json.loads(shown.stdout)["instances"]] == ["i1"]
