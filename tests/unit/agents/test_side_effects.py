"""Side effects of an agent on a real store and a real broker, with outages in the middle of an action."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.agents.shell import side_effects
from qlm.agents.shell.side_effects import SideEffects
from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteBroker, SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import hold_queue
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.actions import Ack, Demote, RenewDelivery
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.faults import FaultLog
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky, until
from support.requests import a_request

HOLDER = Holder(InstanceId("i"), SessionId("s"))
REQUEST = a_request(deadline_ms=1000.0)
LATE = replace(REQUEST, cls=REQUEST.cls.missed())


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SqliteBroker]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    yield queues.broker()
    await queues.close()
    await file.close()


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_effects, "RETRY_S", 0.001)


async def test_a_demotion_that_is_tried_again_is_published_once(broker: Broker) -> None:
    faults, store = Faults(), MemoryStore(SystemClock())
    await broker.publish(REQUEST.cls.queue, codec.encode_request(REQUEST))
    (delivery,) = await broker.get(REQUEST.cls.queue, 1)
    granted = await store.lease(REQUEST.metadata(), HOLDER, None)
    assert isinstance(granted, Granted)
    faults.fail(StoreUnavailableError("away"), "demote")
    effects = SideEffects(HOLDER.instance, broker, flaky(store, faults), SystemClock(), FaultLog())
    worker = asyncio.create_task(effects.run())
    effects.put(Demote(request=LATE, epoch=granted.lease.epoch, delivery=delivery, why="too late"))
    await until(lambda: faults.raised["demote"] >= 3)
    faults.heal()
    await effects.finished()
    worker.cancel()
    assert (await broker.depth(LATE.cls.queue), await broker.depth(REQUEST.cls.queue)) == (1, 0)
    record = await store.record(REQUEST.id)
    assert record is not None
    assert record.metadata.cls == LATE.cls


async def test_a_move_that_is_tried_again_is_published_once_and_so_is_the_next_one(broker: Broker) -> None:
    requests = [a_request("r1"), a_request("r2")]
    faults, queue = Faults(), requests[0].cls.queue
    for request in requests:
        await broker.publish(queue, codec.encode_request(request))
    store = MemoryStore(SystemClock())
    effects = SideEffects(HOLDER.instance, flaky(broker, faults), store, SystemClock(), FaultLog())
    deliveries = await broker.get(queue, 2)
    faults.fail(BrokerUnavailableError("away"), "ack")
    worker = asyncio.create_task(effects.run())
    for delivery in deliveries:
        effects.put(RenewDelivery(delivery=delivery))
    await until(lambda: faults.raised["ack"] >= 3)
    faults.heal()
    await effects.finished()
    worker.cancel()
    renewed = await broker.get(hold_queue(HOLDER.instance), 10)
    assert [codec.decode_request(each.body).id for each in renewed] == ["r1", "r2"]


async def test_a_broker_that_takes_no_message_still_gets_the_acknowledgements_that_free_it(
    broker: SqliteBroker,
) -> None:
    requests = [a_request(name) for name in ("renewed", "ended", "also ended")]
    faults, queue = Faults(), requests[0].cls.queue
    for request in requests:
        await broker.publish(queue, codec.encode_request(request))
    store = MemoryStore(SystemClock())
    effects = SideEffects(HOLDER.instance, flaky(broker, faults), store, SystemClock(), FaultLog())
    renewed, *ended = await broker.get(queue, 3)
    faults.fail(BrokerUnavailableError("RabbitMQ has blocked publishers (low on disk)"), "publish")
    worker = asyncio.create_task(effects.run())
    effects.put(RenewDelivery(delivery=renewed))
    for delivery in ended:
        effects.put(Ack(delivery=delivery))
    await until(lambda: len(broker.unsettled()) == 1)
    faults.heal()
    await effects.finished()
    worker.cancel()
    assert not broker.unsettled()
    assert await broker.depth(hold_queue(HOLDER.instance)) == 1


async def test_of_two_messages_of_a_request_the_second_waits_for_the_renewal_of_the_first(
    broker: SqliteBroker,
) -> None:
    faults, queue, store = Faults(), REQUEST.cls.queue, MemoryStore(SystemClock())
    for _ in range(2):
        await broker.publish(queue, codec.encode_request(REQUEST))
    effects = SideEffects(HOLDER.instance, flaky(broker, faults), store, SystemClock(), FaultLog())
    first, second = await broker.get(queue, 2)
    faults.fail(BrokerUnavailableError("away"), "publish")
    worker = asyncio.create_task(effects.run())
    effects.put(RenewDelivery(delivery=first, other=second))
    effects.put(Ack(delivery=second))
    await until(lambda: faults.raised["publish"] >= 3)
    assert len(broker.unsettled()) == 2
    faults.heal()
    await effects.finished()
    worker.cancel()
    assert not broker.unsettled()
