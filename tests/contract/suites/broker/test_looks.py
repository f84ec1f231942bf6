"""Contract of every broker: read messages without removing them (`peek`), take selected ones (`pick`)."""

import asyncio
import itertools
import threading
from functools import partial

from contract.suites.broker.storage import (
    PATIENCE_S,
    Storage,
    bodies_of,
    body_of,
    collect,
    publish,
    refused,
    until_depth,
)


async def test_peeking_shows_all_and_takes_nothing(storage: Storage) -> None:
    """A look shows up to its limit, again and again; an unknown queue shows nothing."""
    broker, other, queue = await storage.open(), await storage.open(), storage.queue()
    await publish(broker, queue, 5)
    for client in (broker, other, broker):
        assert sorted(await client.peek(queue, body_of, 9)) == [b"%d" % n for n in range(5)]
        assert len(await client.peek(queue, len, 3)) == 3
        await until_depth(other, queue, 5)
    assert not await broker.peek(storage.queue("never"), body_of, 5)
    assert sorted(bodies_of(await other.get(queue, 9))) == [b"%d" % n for n in range(5)]
    assert not await broker.peek(queue, body_of, 9), "what others hold is not shown"


async def test_picking_takes_what_is_wanted(storage: Storage) -> None:
    """Picked messages are handed out like others; the rest is available to all clients."""
    broker, other, queue = await storage.open(), await storage.open(), storage.queue()
    await publish(broker, queue, 6)
    assert not await broker.pick(queue, lambda body: body == b"9", 9, looks_max=99)
    odd = {
        each.body: each for each in await broker.pick(queue, lambda body: int(body) % 2 == 1, 9, looks_max=99)
    }
    assert sorted(odd) == [b"1", b"3", b"5"]
    even = await other.get(queue, 9)
    assert sorted(bodies_of(even)) == [b"0", b"2", b"4"]
    await refused(other.ack, odd[b"1"])
    await broker.ack(odd[b"1"])
    await broker.requeue(odd[b"3"])
    await broker.requeue(odd[b"5"])
    for delivery in even:
        await other.ack(delivery)
    assert not await other.pick(queue, lambda body: body == b"5", 9, looks_max=0)
    (third,) = await other.pick(queue, lambda body: body == b"3", 9, looks_max=99)
    await other.ack(third)
    assert bodies_of(await collect(other, queue, 1)) == [b"5"]


async def test_lookers_do_not_hide_messages_from_each_other(storage: Storage) -> None:
    """Concurrent looks and picks of several clients each see all messages."""
    clients, queue = [await storage.open(), await storage.open()], storage.queue()
    await publish(clients[0], queue, 12)
    looks = (client.peek(queue, body_of, 99) for client in clients * 3)
    picks = (client.pick(queue, lambda body: body == b"none", 99, looks_max=99) for client in clients)
    *seen, none, none_either = await asyncio.gather(*looks, *picks)
    assert not none
    assert not none_either
    for each in seen:
        assert sorted(map(str, each)) == sorted(str(b"%d" % n) for n in range(12))


async def test_a_look_that_fails_loses_nothing(storage: Storage) -> None:
    """The caller gets the exception of `look` or `wanted`, and every message stays."""
    broker, queue = await storage.open(), storage.queue()
    for n in (1, 2, 3, 0, 4):
        await broker.publish(queue, b"%d" % n)
    for _ in range(2):
        try:
            await broker.pick(queue, lambda body: 1 // int(body) == 1, 9, looks_max=99)
        except ZeroDivisionError:
            continue
        raise AssertionError("the error of `wanted` was not raised")
    assert sorted(bodies_of(await collect(broker, queue, 5))) == [b"%d" % n for n in range(5)]


async def test_a_cancelled_pick_loses_nothing(storage: Storage) -> None:
    """A cancelled pick leaves its messages to the next caller."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 4)
    for turns in range(8):
        task = asyncio.ensure_future(broker.pick(queue, lambda _: True, 2, looks_max=99))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (picked,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(picked, BaseException):  # it was done before the cancel
            for each in picked:
                await broker.requeue(each)
    assert sorted(bodies_of(await collect(broker, queue, 4))) == [b"%d" % n for n in range(4)]


async def test_a_crash_during_a_look_loses_nothing(storage: Storage) -> None:
    """No message is lost when a process dies during a look."""
    assert sorted(await _after_a_crash_during_a_look(storage)) == [b"%d" % n for n in range(6)]


async def test_looks_leave_the_order(ordered_storage: Storage) -> None:
    """On one node looks, picks, returns and a crash during a look keep the order."""
    broker, queue = await ordered_storage.open(), ordered_storage.queue()
    await publish(broker, queue, 6)
    assert await broker.peek(queue, body_of, 4) == [b"0", b"1", b"2", b"3"]
    picked = await broker.pick(queue, lambda body: body in (b"2", b"4"), 9, looks_max=99)
    assert bodies_of(picked) == [b"2", b"4"]
    assert await broker.peek(queue, body_of, 9) == [b"0", b"1", b"3", b"5"]
    await broker.requeue(picked[1])
    await broker.ack(picked[0])
    assert bodies_of(await broker.get(queue, 9)) == [b"0", b"1", b"3", b"4", b"5"]
    await publish(other := await ordered_storage.open(), queue, 3)
    (first,) = await other.pick(queue, lambda _: True, 1, looks_max=3)
    (last,) = await other.pick(queue, lambda body: body == b"2", 9, looks_max=2)
    assert (first.body, last.body) == (b"0", b"2")
    assert await _after_a_crash_during_a_look(ordered_storage) == [b"%d" % n for n in range(6)]


async def _after_a_crash_during_a_look(storage: Storage) -> list[bytes]:
    """Kill a client that looks at the fourth of six messages; return the messages of the queue afterwards."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 6)
    looks, go = itertools.count(1), threading.Event()
    reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, reached.set_result, None)

    def look(body: bytes) -> None:
        if next(looks) == 4:
            tell()
            assert go.wait(PATIENCE_S)

    looking = asyncio.ensure_future(broker.peek(queue, look, 9))
    try:
        await asyncio.wait_for(reached, PATIENCE_S)
        crash = asyncio.ensure_future(storage.crash(broker))
        await asyncio.wait({crash}, timeout=0.2)  # one that ends by joining the looker's thread needs `go`
    finally:
        go.set()
    await crash
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    other = await storage.open()
    await until_depth(other, queue, 6)
    return bodies_of(await other.get(queue, 9))
