"""Contract of every broker: deletion of queues that nobody uses."""

import asyncio
import time

from contract.suites.broker.storage import PATIENCE_S, Storage
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker


async def _deleted(broker: Broker, queue: QueueName) -> None:
    """Delete a queue as soon as its clients have ceased to use it."""
    give_up = time.monotonic() + PATIENCE_S
    while not await broker.delete_unused([queue]):
        assert time.monotonic() < give_up, "the queue is still in use"
        await asyncio.sleep(0.05)


async def test_an_unused_queue_goes_and_comes_back(storage: Storage) -> None:
    broker, other = await storage.open(), await storage.open()
    queue, kept = storage.queue(), storage.queue()
    for name in (queue, kept):
        await other.publish(name, b"1")
    (delivery,) = await broker.get(queue)
    await broker.ack(delivery)
    await _deleted(other, queue)
    listed = await broker.queues()
    assert queue not in listed and kept in listed
    assert await broker.depth(queue) == 0
    await other.publish(queue, b"2")
    assert [each.body for each in await broker.get(queue, 9)] == [b"2"]
    assert queue in await broker.queues()
    await storage.crash(other)
    assert queue in await (await storage.open()).queues()


async def test_a_queue_with_a_message_stays(storage: Storage) -> None:
    """Whether it is ready or handed out, and however long ago."""
    broker, other = await storage.open(), await storage.open()
    ready, unsettled, gone = storage.queue(), storage.queue(), storage.queue()
    for name in (ready, unsettled, gone):
        await broker.publish(name, b"1")
    (delivery,) = await other.get(unsettled)
    (done,) = await other.get(gone)
    await other.ack(done)
    await _deleted(broker, gone)  # and so the others, were they unused
    assert await broker.delete_unused([ready, unsettled]) == []
    await other.requeue(delivery)
    for name in (ready, unsettled):
        assert [each.body for each in await broker.get(name, 9)] == [b"1"]


async def test_no_message_is_lost_or_doubled_while_its_queue_is_deleted_again_and_again(
    storage: Storage,
) -> None:
    publisher, getter, deleter = [await storage.open() for _ in range(3)]
    queue, count = storage.queue(), 6
    is_deleted, bodies = asyncio.Event(), list[bytes]()

    async def delete() -> None:
        while True:
            if await deleter.delete_unused([queue]):
                is_deleted.set()
            await asyncio.sleep(0)

    async def receive() -> None:
        while len(bodies) < count:
            for delivery in await getter.get(queue, 9) if await deleter.depth(queue) else ():
                bodies.append(delivery.body)
                await getter.ack(delivery)
            await asyncio.sleep(0.005)

    deleting, receiving = asyncio.create_task(delete()), asyncio.create_task(receive())
    for n in range(count):
        is_deleted.clear()
        await publisher.publish(queue, b"%d" % n)
        async with asyncio.timeout(PATIENCE_S):
            await is_deleted.wait()  # the next message meets the barrier, or the end of the queue
    async with asyncio.timeout(PATIENCE_S):
        await receiving
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    assert bodies == [b"%d" % n for n in range(count)]
