"""`qlm agents` on a Ray cluster of two nodes: who runs where, and what outlives a supervisor."""

import asyncio
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.agents.engines.guard import start_ticks
from support.cluster_load import until
from support.qlm_process import QlmProcess
from support.rabbitmq import RabbitMQ
from support.ray_agents import READY_S, below, left, need_ray, node_of, part, placed, ray_cluster
from support.redis import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

MODEL = "rayed-far"
NODES = ({"accelerator_type:A10": 1}, {"accelerator_type:A100": 1})


@pytest.fixture
def folder() -> Iterator[Path]:
    with need_ray() as folder:
        yield folder


def config(rabbitmq: RabbitMQ, redis: RedisServer) -> dict[str, Any]:
    return {
        "broker": rabbitmq.url,
        "store": redis.url,
        "deployment_name": f"ray-{secrets.token_hex(4)}",
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [
            {"id": "small", "accelerator": "A10", "models": [MODEL]},
            {"id": "large", "accelerator": "A100", "models": [MODEL]},
        ],
    }


def ask(url: str) -> None:
    body = {"model": MODEL, "prompt": "a story", "max_tokens": 20}
    httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def awake(gateway: QlmProcess) -> set[str]:
    found = (
        httpx.get(f"{gateway.admin_url}/admin/v1/instances", timeout=120)
        .raise_for_status()
        .json()["instances"]
    )
    return {each["id"] for each in found if each["active_model"]}


def wait(holds: Any, what: str) -> None:
    asyncio.run(until(holds, what, timeout_s=READY_S))


def test_agents_go_where_their_accelerator_is_and_outlive_a_killed_supervisor(
    rabbitmq: RabbitMQ, redis_server: RedisServer, folder: Path
) -> None:
    both = config(rabbitmq, redis_server)
    one = {**both, "instances": both["instances"][:1]}
    with ray_cluster(folder, *NODES) as address:
        gateway = part("door", "serve", "--no-agents", config=both, folder=folder)
        first = part("first", "agents", "--ray-address", address, config=both, folder=folder)
        second = part("second", "agents", "--ray-address", address, config=one, folder=folder)
        parts = [gateway, first, second]
        try:
            check(gateway, first, second)
        finally:
            for each in parts:
                each.close()


def check(gateway: QlmProcess, first: QlmProcess, second: QlmProcess) -> None:
    gateway.start()
    first.start()
    gateway.wait_ready(instances=2, timeout_s=READY_S)
    agents = placed(first.log())
    assert {name: node_kind(pid) for name, pid in agents.items()} == {"small": "A10", "large": "A100"}

    first.kill()
    second.start()
    wait(lambda: placed(second.log()), "the next supervisor finds what runs")
    assert placed(second.log()) == {"small": agents["small"]}, "an agent goes on in its process"
    wait(lambda: awake(gateway) == {"small"}, "what is no longer configured is drained")
    assert "large is no longer in the configuration" in second.log()
    ask(gateway.url)

    engine = below(agents["small"])
    os.kill(agents["small"], signal.SIGKILL)
    wait(lambda: placed(second.log())["small"] != agents["small"], "Ray starts it again")
    wait(lambda: not left(engine), "its engine went with it")
    wait(lambda: awake(gateway) == {"small"}, "it serves again")
    ask(gateway.url)

    pid = placed(second.log())["small"]
    running = {(pid, start_ticks(pid)), *below(pid)}
    second.terminate(timeout_s=40)
    assert not left(running), "stopping ends the agents that it saw to"
    assert awake(gateway) == set()


def node_kind(pid: int) -> str:
    (kind,) = (name for name in ("A10", "A100") if f"accelerator_type:{name}," in node_of(pid))
    return kind
