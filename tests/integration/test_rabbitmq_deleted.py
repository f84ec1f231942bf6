"""Queues that an operator deletes in RabbitMQ while clients use them."""

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import pika
import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.topology import REGISTRY
from qlm.domain.ids import QueueName
from support.rabbitmq import RabbitMQ


@pytest.fixture
async def broker(rabbitmq: RabbitMQ) -> AsyncIterator[RabbitBroker]:
    broker = await RabbitBroker.connect(RabbitSettings(url=rabbitmq.url), random.Random(7))
    yield broker
    await broker.close()


def delete(node: RabbitMQ, queue: QueueName) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        connection.channel().queue_delete(queue)


async def get(broker: RabbitBroker, queue: QueueName) -> object:
    return await broker.get(queue, 9)


async def pick(broker: RabbitBroker, queue: QueueName) -> object:
    return await broker.pick(queue, bool, 1, looks_max=1)


async def peek(broker: RabbitBroker, queue: QueueName) -> object:
    return await broker.peek(queue, bytes, 9)


@pytest.mark.parametrize("look", [get, pick, peek])
async def test_a_deleted_queue_is_empty_for_those_who_read_it_and_takes_messages_again(
    broker: RabbitBroker, rabbitmq: RabbitMQ, look: Callable[[RabbitBroker, QueueName], Awaitable[object]]
) -> None:
    queue = QueueName(f"test.{secrets.token_hex(4)}")
    await broker.publish(queue, b"1")
    (delivery,) = await broker.get(queue)
    await broker.ack(delivery)
    for n in range(2):
        delete(rabbitmq, queue)
        assert await look(broker, queue) == []
        await broker.publish(queue, b"%d" % n)
        (delivery,) = await broker.get(queue)
        assert delivery.body == b"%d" % n
        await broker.ack(delivery)


async def test_a_deleted_registry_is_made_anew(broker: RabbitBroker, rabbitmq: RabbitMQ) -> None:
    await broker.queues()
    delete(rabbitmq, REGISTRY)
    assert await broker.queues() == []
    queue = QueueName(f"test.{secrets.token_hex(4)}")
    await broker.publish(queue, b"1")
    assert queue in await broker.queues()
