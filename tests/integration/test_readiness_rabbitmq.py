"""Readiness while a real RabbitMQ takes no messages."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.topology import PROBE
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.health import OK, Health
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.faults import FaultLog
from qlm.store.embedded.memory import MemoryStore
from support.gateway import running_cluster, until
from support.rabbitmq import RabbitMQ

BLOCKED = "RabbitMQ has blocked publishers (low on memory)"
PROBES = 50


@pytest.fixture
def node(start_rabbitmq: Callable[..., RabbitMQ]) -> RabbitMQ:
    return start_rabbitmq()


async def alarm(node: RabbitMQ, *, on: bool) -> None:
    """Raise or end RabbitMQ's memory alarm."""
    await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0" if on else "0.9")


@pytest.fixture
async def broker(node: RabbitMQ) -> AsyncIterator[RabbitBroker]:
    broker = await RabbitBroker.connect(RabbitSettings(url=node.url), random.Random(1))
    yield broker
    await broker.close()


async def test_a_gateway_is_not_ready_while_rabbitmq_blocks_publishers(
    node: RabbitMQ, broker: RabbitBroker, tmp_path: Path
) -> None:
    """Also one that has published nothing yet, and that no refused request tells of the alarm."""
    async with running_cluster(tmp_path) as cluster, httpx.AsyncClient(timeout=20) as http:
        url = await cluster.gateway(broker=broker)

        async def found(status: int, state: str) -> bool:
            answer = await http.get(f"{url}/readyz")
            return (answer.status_code, answer.json()["broker"]) == (status, state)

        assert await found(200, OK)
        await alarm(node, on=True)
        await until(lambda: found(503, BLOCKED), 20)
        for _ in range(PROBES):
            assert await found(503, BLOCKED)
        await alarm(node, on=False)
        await until(lambda: found(200, OK), 5)
        assert await broker.depth(PROBE) <= 1, "each probe replaces the former"


async def test_a_part_is_not_ready_while_rabbitmq_blocks_publishers(
    node: RabbitMQ, broker: RabbitBroker
) -> None:
    health = Health(CollectorRegistry(), FaultLog())

    async def open_broker() -> Broker:
        return broker

    async def found(state: str) -> bool:
        return (await health.probe()).broker == state

    async with health.watching(Backends(MemoryStore(SystemClock()), open_broker, embedded=False)):
        assert await found(OK)
        await alarm(node, on=True)
        await until(lambda: found(BLOCKED), 20)
        await alarm(node, on=False)
        await until(lambda: found(OK), 20)
