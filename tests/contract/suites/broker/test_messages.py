"""Contract of every broker: order, depth, acknowledgement, and what survives a crash.

A test takes a `Storage` that is empty or shared with others (it uses queue names of its own). Tests of
`ordered_storage` hold on one node, but not on replicated (quorum) queues.
"""

import asyncio
import itertools

from contract.suites.broker.storage import Storage, bodies_of, collect, publish, refused, until_depth
from qlm.broker import codec
from qlm.domain.ports.broker import Broker
from support.requests import a_request


async def test_messages_come_in_the_order_published(storage: Storage) -> None:
    """First in, first out; what is acknowledged is gone."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 20)
    for n in range(20):
        (delivery,) = await broker.get(queue)
        assert (delivery.body, delivery.queue, delivery.redelivered) == (b"%d" % n, queue, False), delivery
        await broker.ack(delivery)
    assert not await broker.get(queue)


async def test_an_unknown_queue_is_empty(storage: Storage) -> None:
    """Getting from a queue never used gives nothing, and its depth is 0."""
    broker = await storage.open()
    assert await broker.depth(storage.queue("never")) == 0
    assert not await broker.get(storage.queue("never"), 5)
    assert await broker.depth(storage.queue("never")) == 0


async def test_get_takes_at_most_its_limit(storage: Storage) -> None:
    """`limit` bounds what a call takes; fewer come if the queue holds fewer."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 5)
    assert bodies_of(await broker.get(queue, 3)) == [b"0", b"1", b"2"]
    assert bodies_of(await broker.get(queue, 3)) == [b"3", b"4"]


async def test_a_request_comes_as_it_was_published(storage: Storage) -> None:
    """A body may have its request with it: whether that comes too or not, a reader gets the same."""
    broker, queue, request = await storage.open(), storage.queue(), a_request("r")
    await broker.publish(queue, codec.RequestBody.of(request))
    await until_depth(broker, queue, 1)
    deliveries = broker.get_now(queue) or await broker.get(queue)
    assert [codec.decode_request(each.body) for each in deliveries] == [request]
    await broker.requeue(deliveries[0])
    await until_depth(broker, queue, 1)
    (again,) = await broker.get(queue)
    assert (again.body, codec.decode_request(again.body)) == (codec.encode_request(request), request)


async def test_what_is_taken_at_once_is_handed_out(storage: Storage) -> None:
    """It is acknowledged as any other; a broker that cannot has done nothing, and `get` does it then."""
    broker, queue = await storage.open(), storage.queue()
    assert not broker.get_now(queue)
    await publish(broker, queue, 3)
    await until_depth(broker, queue, 3)
    deliveries = broker.get_now(queue, 2)
    if deliveries is None:
        await until_depth(broker, queue, 3)
        deliveries = await broker.get(queue, 2)
    assert bodies_of(deliveries) == [b"0", b"1"]
    assert not any(each.redelivered for each in deliveries)
    await until_depth(broker, queue, 1)
    await broker.ack(deliveries[0])
    await broker.requeue(deliveries[1])
    await until_depth(broker, queue, 2)  # RabbitMQ answers a requeue before the message is back
    again = [(each.body, each.redelivered) for each in await collect(broker, queue, 2)]
    assert sorted(again) == [(b"1", True), (b"2", False)]


async def test_depth_counts_only_what_is_ready(storage: Storage) -> None:
    """Returned messages count, those handed out do not."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 3)
    await until_depth(broker, queue, 3)
    first, second = await broker.get(queue, 2)
    await until_depth(broker, queue, 1)
    await broker.ack(first)
    await broker.requeue(second)
    await until_depth(broker, queue, 2)


async def test_queues_do_not_mix(storage: Storage) -> None:
    """Each queue has its own messages and depth."""
    broker, one, two = await storage.open(), storage.queue("one"), storage.queue("two")
    for n in range(4):
        await broker.publish(one, b"one %d" % n)
        await broker.publish(two, b"two %d" % n)
    assert bodies_of(await broker.get(two, 9)) == [b"two 0", b"two 1", b"two 2", b"two 3"]
    await until_depth(broker, one, 4)
    await until_depth(broker, two, 0)


async def test_a_requeued_message_comes_back_marked(storage: Storage) -> None:
    """A returned message is handed out again, to any client, marked redelivered."""
    broker, other, queue = await storage.open(), await storage.open(), storage.queue()
    await publish(broker, queue, 1)
    (delivery,) = await broker.get(queue)
    assert not delivery.redelivered
    await broker.requeue(delivery)
    (again,) = await other.get(queue)
    assert (again.body, again.redelivered) == (b"0", True)


async def test_a_returned_message_finds_its_place(ordered_storage: Storage) -> None:
    """On one node a returned message comes before those published after it."""
    broker, queue = await ordered_storage.open(), ordered_storage.queue()
    await publish(broker, queue, 6)
    taken = await broker.get(queue, 3)
    await broker.requeue(taken[1])
    assert bodies_of(await broker.get(queue, 2)) == [b"1", b"3"]
    await broker.close()
    other = await ordered_storage.open()
    await until_depth(other, queue, 6)
    assert bodies_of(await other.get(queue, 4)) == [b"0", b"1", b"2", b"3"]
    await ordered_storage.crash(other)
    last = await ordered_storage.open()
    await until_depth(last, queue, 6)
    assert bodies_of(await last.get(queue, 9)) == [b"%d" % n for n in range(6)]


async def test_a_delivery_can_be_settled_once(storage: Storage) -> None:
    """A settled delivery cannot be settled again, and the attempt affects no other delivery."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 3)
    acked, requeued, taken = await broker.get(queue, 3)
    await broker.ack(acked)
    await broker.requeue(requeued)
    (again,) = await broker.get(queue)
    for lost in (acked, requeued):
        await refused(broker.ack, lost)
        await refused(broker.requeue, lost)
    await broker.ack(again)
    await broker.ack(taken)
    assert not await broker.get(queue)


async def test_a_delivery_belongs_to_its_receiver(storage: Storage) -> None:
    """A client cannot settle a delivery of another client."""
    broker, other, queue = await storage.open(), await storage.open(), storage.queue()
    await publish(broker, queue, 1)
    (delivery,) = await broker.get(queue)
    await refused(other.ack, delivery)
    await broker.ack(delivery)


async def test_bodies_are_kept_byte_by_byte(storage: Storage) -> None:
    """Empty, binary, non-ASCII and long bodies are returned unchanged, for any queue name."""
    broker, queue = await storage.open(), storage.queue("~e4 long " + "x" * 100)
    bodies = [b"", b"\x00\xff\n", "grüße, 你好 🙂".encode(), bytes(range(256)) * 4096, b"end"]
    for body in bodies:
        await broker.publish(queue, body)
    assert bodies_of(await broker.get(queue, len(bodies))) == bodies


async def test_two_getters_share_without_overlap(storage: Storage) -> None:
    """Concurrent gets of several clients hand out each message once."""
    queue, clients = storage.queue(), [await storage.open(), await storage.open()]
    await publish(clients[0], queue, 60)

    async def drain(broker: Broker) -> list[bytes]:
        got: list[bytes] = []
        while deliveries := await broker.get(queue, 3):
            for delivery in deliveries:
                got.append(delivery.body)
                await broker.ack(delivery)
        return got

    shares = await asyncio.gather(*(drain(client) for client in clients * 3))
    assert sorted(itertools.chain(*shares)) == sorted(b"%d" % n for n in range(60))


async def test_concurrent_publishers_lose_nothing(storage: Storage) -> None:
    """Many publishes at once are all stored, each publisher's in its own order."""
    broker, queue = await storage.open(), storage.queue()

    async def publisher(name: int) -> None:
        for n in range(10):
            await broker.publish(queue, b"%d %d" % (name, n))

    await asyncio.gather(*(publisher(name) for name in range(50)))
    bodies = bodies_of(await broker.get(queue, 1000))
    assert len(bodies) == len(set(bodies)) == 500
    for name in range(50):
        mine = [body for body in bodies if body.startswith(b"%d " % name)]
        assert mine == [b"%d %d" % (name, n) for n in range(10)]


async def test_a_cancelled_get_loses_nothing(storage: Storage) -> None:
    """A cancelled get leaves its messages to the next caller."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 8)
    for turns in range(8):
        task = asyncio.ensure_future(broker.get(queue, 2))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        for delivery in (await asyncio.gather(task, return_exceptions=True))[0:1]:
            if not isinstance(delivery, BaseException):  # it was done before the cancel
                for each in delivery:
                    await broker.requeue(each)
    assert sorted(bodies_of(await collect(broker, queue, 8))) == [b"%d" % n for n in range(8)]


async def test_close_returns_what_is_handed_out(storage: Storage) -> None:
    """After a close, others get the unacknowledged messages of the client, marked redelivered."""
    broker, other, queue = await storage.open(), await storage.open(), storage.queue()
    await publish(broker, queue, 3)
    first, _ = await broker.get(queue, 2)
    await broker.ack(first)
    await broker.close()
    await broker.close()
    left = {delivery.body: delivery.redelivered for delivery in await collect(other, queue, 2)}
    assert left == {b"1": True, b"2": False}


async def test_a_crash_loses_no_message(storage: Storage) -> None:
    """Published messages survive their publisher; those handed out to it are marked redelivered."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 10)
    assert len(await broker.get(queue, 3)) == 3
    await storage.crash(broker)
    other = await storage.open()
    redelivered = {delivery.body: delivery.redelivered for delivery in await collect(other, queue, 10)}
    assert sorted(redelivered) == [b"%d" % n for n in range(10)]
    assert all(redelivered[body] for body in (b"0", b"1", b"2"))


async def test_a_crash_ends_the_right_to_acknowledge(storage: Storage) -> None:
    """A client cannot settle a delivery of a dead client, even if it has received the message itself."""
    broker, queue = await storage.open(), storage.queue()
    await publish(broker, queue, 1)
    (delivery,) = await broker.get(queue)
    await storage.crash(broker)
    other = await storage.open()
    (again,) = await collect(other, queue, 1)
    await refused(other.ack, delivery)
    await other.ack(again)


async def test_queues_lists_every_name_ever_published_to(storage: Storage) -> None:
    """Every client sees each name once, also of empty queues and after a crash."""
    broker, other = await storage.open(), await storage.open()
    names = {storage.queue(label) for label in ("one", "two", "three")}
    for name in names:
        await asyncio.gather(broker.publish(name, b"1"), other.publish(name, b"2"))
        for delivery in await broker.get(name, 9):
            await broker.ack(delivery)
    listings = await asyncio.gather(*(client.queues() for client in (broker, other, broker, other)))
    for listing in listings:
        assert names <= set(listing)
        assert len(listing) == len(set(listing))
    await storage.crash(broker)
    assert names <= set(await (await storage.open()).queues())
