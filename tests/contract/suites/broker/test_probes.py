"""Contract of every broker: a probe stores a message, which no client sees."""

import asyncio

from contract.suites.broker.storage import PATIENCE_S, Storage, bodies_of, collect, publish
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ports.broker import Broker
from support.flaky import until


async def test_a_probe_changes_no_queue(storage: Storage) -> None:
    """It is listed nowhere, and messages stay as they are."""
    broker, queue = await storage.open(), storage.queue()
    before = await broker.queues()
    await broker.probe()
    assert await broker.queues() == before
    await publish(broker, queue, 2)
    await asyncio.gather(*(broker.probe() for _ in range(20)))
    assert bodies_of(await broker.get(queue, 9)) == [b"0", b"1"]


async def test_probes_hold_across_a_crash(storage: Storage) -> None:
    """What was probed before a crash hinders nothing afterwards."""
    broker, queue = await storage.open(), storage.queue()
    await broker.probe()
    await publish(broker, queue, 1)
    await storage.crash(broker)
    survivor = await storage.open()
    await until(lambda: _is_probed(survivor), PATIENCE_S)
    assert bodies_of(await collect(survivor, queue, 1)) == [b"0"]


async def _is_probed(broker: Broker) -> bool:
    try:
        await broker.probe()
    except BrokerUnavailableError:
        return False
    return True
