"""What is special to RabbitMQ: faults of the connection, of the broker and of queues."""

import asyncio
import contextlib
import random
import secrets
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pika
import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.topology import QUEUE_NAME_BYTES_MAX, REGISTRY, QueueKind, QueueType
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, InvalidValueError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import UNHEARD_MAX_S
from support.ports import free_port
from support.rabbitmq import RabbitMQ
from support.wire import Wire

PATIENCE_S = 30.0


@pytest.fixture
def queue() -> QueueName:
    return QueueName(f"test.{secrets.token_hex(4)}")


@pytest.fixture
async def wire(rabbitmq: RabbitMQ) -> AsyncIterator[Wire]:
    async with Wire(rabbitmq.port) as wire:
        yield wire


@pytest.fixture
async def broker(wire: Wire) -> AsyncIterator[RabbitBroker]:
    broker = await connect(wire.port)
    yield broker
    await broker.close()


async def connect(port: int, **settings: object) -> RabbitBroker:
    url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
    return await RabbitBroker.connect(RabbitSettings(url=url, **settings), random.Random(7))  # type: ignore[arg-type]


def delete_queue(rabbitmq: RabbitMQ, queue: QueueName) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_delete(queue)


async def until(condition: Callable[[], bool]) -> None:
    await until_true(lambda: asyncio.sleep(0, condition()))


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        met = await condition()
        while not met:
            await asyncio.sleep(0.01)
            met = await condition()


async def depth_is(broker: RabbitBroker, queue: QueueName, depth: int) -> bool:
    return await broker.depth(queue) == depth


def control(node: RabbitMQ, *command: str) -> None:
    """Run rabbitmqctl in the node's own environment."""
    program = "/usr/lib/rabbitmq/bin/rabbitmqctl"
    subprocess.run([program, *command], env=node._node._env, check=True, capture_output=True, timeout=60)


async def test_no_broker_is_one_clear_sentence() -> None:
    port = free_port()
    with pytest.raises(
        BrokerUnavailableError, match=rf"^no RabbitMQ could be reached at 127\.0\.0\.1:{port}: .*refused"
    ):
        await connect(port)


async def test_a_wrong_password_is_said_without_showing_it(rabbitmq: RabbitMQ) -> None:
    url = f"amqp://guest:topsecret@127.0.0.1:{rabbitmq.port}/%2F"
    with pytest.raises(BrokerUnavailableError, match="ACCESS_REFUSED") as caught:
        await RabbitBroker.connect(RabbitSettings(url=url), random.Random(1))
    assert "topsecret" not in str(caught.value)
    assert "topsecret" not in repr(RabbitSettings(url=url))


async def test_a_server_that_never_answers_is_given_up(rabbitmq: RabbitMQ) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(BrokerUnavailableError, match="reached"),
    ):
        await connect(mute.getsockname()[1], connect_timeout_s=0.2)


@pytest.mark.parametrize("url", ["", "http://x", "amqp://h:port"])
async def test_a_url_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="broker is"):
        await RabbitBroker.connect(RabbitSettings(url=url), random.Random(1))


async def test_clients_come_back_by_themselves_after_a_lost_connection(
    broker: RabbitBroker, wire: Wire, queue: QueueName
) -> None:
    await broker.publish(queue, b"1")
    for n in range(3):
        wire.snap()
        connections = wire.connections
        await until(lambda connections=connections: wire.connections >= connections + 2)  # type: ignore[misc]
        await broker.publish(queue, b"after %d" % n)
    assert [d.body for d in await broker.get(queue, 9)] == [b"1", b"after 0", b"after 1", b"after 2"]


async def test_publishes_on_their_way_fail_when_the_connection_is_lost(
    broker: RabbitBroker, wire: Wire, queue: QueueName
) -> None:
    await broker.publish(queue, b"0")
    wire.clog()
    publishes = [asyncio.ensure_future(broker.publish(queue, b"%d" % n)) for n in range(20)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(publishes[0]), 0.2)
    wire.snap()
    wire.unclog()
    outcomes = await asyncio.gather(*publishes, return_exceptions=True)
    assert all(isinstance(outcome, BrokerUnavailableError) for outcome in outcomes), outcomes
    await broker.publish(queue, b"later")


async def test_a_publish_waits_for_the_broker_to_come_back(
    broker: RabbitBroker, wire: Wire, queue: QueueName
) -> None:
    await wire.cut()
    publishes = [asyncio.ensure_future(broker.publish(queue, b"%d" % n)) for n in range(5)]
    getting = asyncio.ensure_future(broker.depth(queue))
    await asyncio.wait({*publishes, getting}, timeout=0.3)
    assert not any(publish.done() for publish in publishes)
    await wire.mend()
    await asyncio.gather(*publishes)
    assert await getting in range(6)
    assert [d.body for d in await broker.get(queue, 9)] == [b"%d" % n for n in range(5)]


async def test_calls_fail_in_time_while_the_broker_is_away(wire: Wire, queue: QueueName) -> None:
    broker = await connect(wire.port, confirm_timeout_s=0.5)
    await broker.publish(queue, b"1")
    await wire.cut()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    calls: list[Coroutine[Any, Any, object]] = [broker.publish(queue, b"2"), broker.get(queue)]
    calls += [broker.publish(QueueName("new"), b"3"), broker.depth(queue), broker.queues()]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, BrokerUnavailableError) for outcome in outcomes), outcomes
    assert loop.time() - started_s < 5
    await broker.close()


async def test_a_confirm_that_never_comes_is_an_error_in_time(wire: Wire, queue: QueueName) -> None:
    broker = await connect(wire.port, confirm_timeout_s=0.5)
    await broker.publish(queue, b"1")
    wire.clog()
    with pytest.raises(BrokerUnavailableError, match=r"not confirmed within 0\.5 s"):
        await broker.publish(queue, b"2")
    wire.unclog()
    await broker.publish(queue, b"3")
    await broker.close()


async def test_acks_after_a_reconnect_are_refused(broker: RabbitBroker, wire: Wire, queue: QueueName) -> None:
    for n in range(2):
        await broker.publish(queue, b"%d" % n)
    lost = await broker.get(queue, 2)
    wire.snap()
    await until_true(lambda: depth_is(broker, queue, 2))
    again = await broker.get(queue, 2)
    assert [d.redelivered for d in again] == [True, True]
    for settle in (broker.ack, broker.requeue):
        with pytest.raises(DeliveryLostError):
            await settle(lost[0])
    for delivery in again:
        await broker.ack(delivery)


async def test_messages_of_a_client_that_stands_still_come_back(
    rabbitmq: RabbitMQ, wire: Wire, queue: QueueName
) -> None:
    """Its connection stays open: RabbitMQ misses its heartbeats."""
    others = await connect(rabbitmq.port)
    still = await connect(wire.port, heartbeat_s=1)
    await others.publish(queue, b"taken")
    assert await still.get(queue)
    wire.clog()

    async def is_back() -> bool:
        return bool(await others.get(queue))

    try:
        await until_true(is_back)
    finally:
        wire.unclog()
        await others.close()
        await still.close()


def test_a_client_that_stands_still_is_noticed_within_the_time_that_others_allow_for() -> None:
    heartbeats_missed_max = 3
    parameters = RabbitSettings(url="amqp://127.0.0.1/?heartbeat=60").parameters()
    assert parameters.heartbeat * heartbeats_missed_max <= UNHEARD_MAX_S


async def test_the_acknowledgement_timeout_costs_the_delivery_and_nothing_else(
    start_rabbitmq: Callable[..., RabbitMQ], queue: QueueName
) -> None:
    node = start_rabbitmq(consumer_timeout_ms=1000)
    broker = await connect(node.port)
    await broker.publish(queue, b"1")
    (slow,) = await broker.get(queue)
    await until_true(lambda: depth_is(broker, queue, 1))
    with pytest.raises(DeliveryLostError):
        await broker.ack(slow)
    (again,) = await broker.get(queue)
    assert again.redelivered
    await broker.ack(again)
    await broker.publish(queue, b"2")
    await broker.close()


async def test_an_unroutable_publish_is_an_error_and_the_next_declares_anew(
    broker: RabbitBroker, rabbitmq: RabbitMQ, queue: QueueName
) -> None:
    await broker.publish(queue, b"1")
    delete_queue(rabbitmq, queue)
    with pytest.raises(BrokerUnavailableError, match=f"{queue} is gone: NO_ROUTE"):
        await broker.publish(queue, b"2")
    await broker.publish(queue, b"3")
    assert [d.body for d in await broker.get(queue, 9)] == [b"3"]


async def test_a_queue_of_another_kind_is_refused_and_others_go_on(
    broker: RabbitBroker, rabbitmq: RabbitMQ, queue: QueueName
) -> None:
    await broker.publish(queue, b"1")
    other = await connect(rabbitmq.port, kind=QueueKind(type=QueueType.QUORUM))
    delete_queue(rabbitmq, REGISTRY)
    mine = QueueName(f"{queue}.quorum")
    refused, taken = await asyncio.gather(
        other.publish(queue, b"2"), other.publish(mine, b"3"), return_exceptions=True
    )
    assert isinstance(refused, BrokerUnavailableError)
    assert "PRECONDITION_FAILED" in str(refused)
    assert taken is None
    assert [d.body for d in await other.get(mine)] == [b"3"]
    await other.close()
    delete_queue(rabbitmq, REGISTRY)


async def test_a_forbidden_publish_says_so_and_works_once_it_is_allowed(
    start_rabbitmq: Callable[..., RabbitMQ], queue: QueueName
) -> None:
    """RabbitMQ closes the channel, and with it all that is on its way: the client must start afresh."""
    node = start_rabbitmq()
    await asyncio.to_thread(control, node, "set_permissions", "guest", ".*", "", ".*")
    broker = await connect(node.port)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="ACCESS_REFUSED"):
            await broker.publish(queue, b"1")
    await asyncio.to_thread(control, node, "set_permissions", "guest", ".*", ".*", ".*")
    await broker.publish(queue, b"2")
    assert [d.body for d in await broker.get(queue, 9)] == [b"2"]
    await broker.close()


async def test_closing_does_not_wait_for_a_broker_that_reads_nothing(wire: Wire, queue: QueueName) -> None:
    broker = await connect(wire.port)
    await broker.publish(queue, b"1")
    wire.clog()
    async with asyncio.timeout(PATIENCE_S):
        await broker.close()
    assert "qlm-rabbitmq" not in [thread.name for thread in threading.enumerate()]


async def test_reading_the_registry_prunes_duplicates_only(rabbitmq: RabbitMQ, queue: QueueName) -> None:
    clients = [await connect(rabbitmq.port) for _ in range(3)]
    for client in clients:
        await client.publish(queue, b"x")
    assert queue in await clients[0].queues()
    depth = await clients[0].depth(REGISTRY)
    listings = await asyncio.gather(*(client.queues() for client in clients))
    assert all(len(listing) == depth for listing in listings)
    for client in clients:
        await client.close()


async def test_a_name_is_listed_once_however_often_the_client_reconnects(
    broker: RabbitBroker, wire: Wire, queue: QueueName
) -> None:
    await broker.publish(queue, b"1")
    registered = await broker.depth(REGISTRY)
    for _ in range(2):
        connections = wire.connections
        wire.snap()
        await until(lambda connections=connections: wire.connections >= connections + 2)  # type: ignore[misc]
        await broker.publish(queue, b"2")  # registers again: the queue may have been deleted meanwhile
    assert list(await broker.queues()).count(queue) == 1
    assert await broker.depth(REGISTRY) == registered, "the listing has removed the others"


async def test_closing_leaves_no_thread_and_refuses_further_calls(
    rabbitmq: RabbitMQ, queue: QueueName
) -> None:
    broker = await connect(rabbitmq.port)
    await broker.publish(queue, b"1")
    await broker.close()
    await broker.close()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        await broker.publish(queue, b"2")
    assert "qlm-rabbitmq" not in [thread.name for thread in threading.enumerate()]


async def test_closing_while_the_broker_is_away_ends_what_waits(wire: Wire, queue: QueueName) -> None:
    broker = await connect(wire.port)
    await wire.cut()
    waiting = [asyncio.ensure_future(call) for call in (broker.publish(queue, b"1"), broker.get(queue))]
    await asyncio.wait(waiting, timeout=0.2)
    await broker.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, BrokerUnavailableError) for outcome in outcomes), outcomes


async def test_a_killed_broker_keeps_confirmed_messages_and_clients_return(
    start_rabbitmq: Callable[..., RabbitMQ], queue: QueueName
) -> None:
    node = start_rabbitmq()
    broker = await connect(node.port)
    confirmed: set[bytes] = set()
    stop = asyncio.Event()

    async def publisher(name: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            with contextlib.suppress(BrokerUnavailableError):
                await broker.publish(queue, b"%d.%d" % (name, n))
                confirmed.add(b"%d.%d" % (name, n))

    publishers = [asyncio.ensure_future(publisher(name)) for name in range(32)]
    await until(lambda: len(confirmed) > 500)
    await asyncio.to_thread(node.kill)
    before = len(confirmed)
    await asyncio.to_thread(node.start)
    await until(lambda: len(confirmed) > before + 100)
    stop.set()
    await asyncio.gather(*publishers)
    found = {delivery.body for delivery in await broker.get(queue, 1_000_000)}
    assert confirmed <= found
    assert queue in await broker.queues()
    await broker.close()


async def test_a_broker_short_of_memory_is_an_error_for_publishers_but_not_for_getters(
    start_rabbitmq: Callable[..., RabbitMQ], queue: QueueName
) -> None:
    node = start_rabbitmq()
    broker = await connect(node.port, confirm_timeout_s=1.0)
    await broker.publish(queue, b"1")
    await asyncio.to_thread(control, node, "set_vm_memory_high_watermark", "0")
    with pytest.raises(BrokerUnavailableError):
        await broker.publish(queue, b"2")  # makes RabbitMQ tell us that it has blocked us
    with pytest.raises(BrokerUnavailableError, match=r"has blocked publishers \(low on memory\)"):
        await broker.publish(queue, b"3")
    (delivery,) = await broker.get(queue)
    await broker.ack(delivery)
    waiting = asyncio.ensure_future(broker.publish(queue, b"4"))
    await asyncio.to_thread(control, node, "set_vm_memory_high_watermark", "0.9")
    await asyncio.gather(waiting, return_exceptions=True)  # either end is right: the block may lift in time
    await broker.publish(queue, b"5")
    left = [delivery.body for delivery in await broker.get(queue, 9)]
    assert b"5" in left
    assert b"3" not in left, "it was sent to a broker that had said it does not read"
    await broker.close()


async def test_the_longest_queue_name_can_be_used_and_deleted(rabbitmq: RabbitMQ) -> None:
    settings = RabbitSettings(url=rabbitmq.url, forget_s=0.1)
    client = await RabbitBroker.connect(settings, random.Random(1))
    queue = QueueName(f"test.{secrets.token_hex(4)}.".ljust(QUEUE_NAME_BYTES_MAX, "x"))
    await client.publish(queue, b"1")
    (delivery,) = await client.get(queue)
    await client.ack(delivery)
    give_up = asyncio.get_running_loop().time() + 10
    while not await client.delete_unused([queue]):
        assert asyncio.get_running_loop().time() < give_up, "the queue is still in use"
        await asyncio.sleep(0.05)
    assert queue not in await client.queues()
    await client.close()
