"""A RabbitMQ that is low on memory, and deletions of idle queues that do not end."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from qlm.broker.rabbitmq import dropper
from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.rabbitmq.connection import RESOURCE_LOCKED
from qlm.broker.rabbitmq.usage import barrier_of
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName
from support.gateway import until
from support.rabbitmq import RabbitMQ
from support.wire import Wire

PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def clients(node: RabbitMQ, count: int, timeout_s: float) -> AsyncIterator[list[RabbitBroker]]:
    settings = RabbitSettings(url=node.url, confirm_timeout_s=timeout_s, forget_s=0.1)
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for seed in range(count):
            made.append(await RabbitBroker.connect(settings, random.Random(seed)))
            stack.push_async_callback(made[-1].close)
        yield made


@contextlib.contextmanager
def barred(node: RabbitMQ, queue: QueueName) -> Iterator[None]:
    """Hold the barrier of a queue, as a client does that deletes it."""
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().queue_declare(barrier_of(queue), exclusive=True)
        yield


def new_queue() -> QueueName:
    return QueueName(f"test.{secrets.token_hex(4)}")


async def emptied(publisher: RabbitBroker, getter: RabbitBroker, queue: QueueName) -> None:
    await publisher.publish(queue, b"1")
    (delivery,) = await getter.get(queue)
    await getter.ack(delivery)


async def test_a_memory_alarm_stops_deletions_at_once_and_gets_go_on(
    start_rabbitmq: Callable[..., RabbitMQ],
) -> None:
    node, queue = start_rabbitmq(), new_queue()
    async with clients(node, 3, timeout_s=PATIENCE_S) as (gateway, controller, agent):
        await emptied(gateway, agent, queue)
        await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0")
        async with asyncio.timeout(PATIENCE_S / 2):
            await until(lambda: _stores_nothing(gateway))
            await until(lambda: _deletes_nothing(controller, queue))  # what is sent first is still answered
            with pytest.raises(BrokerUnavailableError, match="has blocked publishers"):
                await controller.delete_unused([queue])
            assert await agent.get(queue) == []
            assert await agent.get(new_queue()) == []
            assert await controller.depth(queue) == 0
        await asyncio.to_thread(node.control, "set_vm_memory_high_watermark", "0.9")
        async with asyncio.timeout(PATIENCE_S):
            await gateway.publish(queue, b"2")
            (delivery,) = await agent.get(queue)
            await agent.ack(delivery)
            await until(lambda: _deleted(controller, queue))


async def _stores_nothing(broker: RabbitBroker) -> bool:
    try:
        await broker.probe()
    except BrokerUnavailableError:
        return True
    return False


async def _deletes_nothing(broker: RabbitBroker, queue: QueueName) -> bool:
    try:
        await broker.delete_unused([queue])
    except BrokerUnavailableError:
        return True
    return False


async def _deleted(broker: RabbitBroker, queue: QueueName) -> bool:
    try:
        return bool(await broker.delete_unused([queue]))
    except BrokerUnavailableError:  # it has not heard yet that the alarm is over
        return False


async def test_a_deletion_that_does_not_end_costs_the_calls_of_its_queue_alone(rabbitmq: RabbitMQ) -> None:
    queue = new_queue()
    async with clients(rabbitmq, 1, timeout_s=1.0) as (client,):
        with barred(rabbitmq, queue):
            calls: list[Coroutine[Any, Any, object]] = []
            calls += [client.get(queue) for _ in range(8)]  # more than there are channels for gets
            calls.append(client.pick(queue, bool, 1, looks_max=1))
            waiting = [asyncio.ensure_future(call) for call in (*calls, client.publish(queue, b"1"))]
            await asyncio.gather(*(client.get(new_queue()) for _ in range(8)))
            assert not any(call.done() for call in waiting)
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, BrokerUnavailableError) for each in outcomes), outcomes
            assert "still being deleted after 1 s" in str(outcomes[0])
        await until(lambda: asyncio.to_thread(lambda: not _is_barred(rabbitmq, queue)))
        await client.publish(queue, b"2")
        assert [each.body for each in await client.get(queue, 9)] == [b"2"]


async def test_a_deletion_without_an_answer_ends_in_time_and_so_does_its_barrier(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropper, "SETTLE_S", PATIENCE_S)
    queue = new_queue()
    async with Wire(rabbitmq.port) as wire, clients(rabbitmq, 1, timeout_s=PATIENCE_S) as (other,):
        await emptied(other, other, queue)
        url = f"amqp://guest:guest@127.0.0.1:{wire.port}/%2F"
        settings = RabbitSettings(url=url, confirm_timeout_s=1.0)
        deleting = await RabbitBroker.connect(settings, random.Random(9))
        deletion = asyncio.ensure_future(deleting.delete_unused([queue]))
        await until(lambda: asyncio.to_thread(_is_barred, rabbitmq, queue))
        wire.clog()
        with pytest.raises(BrokerUnavailableError, match="idle queues were not deleted: no answer in 1 s"):
            async with asyncio.timeout(PATIENCE_S):
                await deletion
        wire.unclog()
        await until(lambda: asyncio.to_thread(lambda: not _is_barred(rabbitmq, queue)))
        assert await deleting.depth(queue) == 0, "it has connected anew"
        await deleting.close()


def _is_barred(node: RabbitMQ, queue: QueueName) -> bool:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        try:
            connection.channel().queue_declare(barrier_of(queue), passive=True)
        except ChannelClosedByBroker as error:
            return bool(error.reply_code == RESOURCE_LOCKED)
    return True
