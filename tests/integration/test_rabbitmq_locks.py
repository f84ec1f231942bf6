"""What callers keep from each other in RabbitMQ."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pika
import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.rabbitmq.connection import connect as open_connection
from qlm.broker.rabbitmq.registry import locked
from qlm.domain.ids import QueueName
from support.rabbitmq import RabbitMQ
from support.wire import Wire

QUEUES = 60
LATE_S = 1.0


async def connect(node: RabbitMQ, seed: int) -> RabbitBroker:
    return await RabbitBroker.connect(RabbitSettings(url=node.url, forget_s=0.1), random.Random(seed))


@pytest.fixture
async def wire(rabbitmq: RabbitMQ) -> AsyncIterator[Wire]:
    async with Wire(rabbitmq.port) as wire:
        yield wire


async def test_a_client_that_deletes_a_queue_lists_all_others_meanwhile(rabbitmq: RabbitMQ) -> None:
    first, *others = (QueueName(f"test.{secrets.token_hex(4)}") for _ in range(QUEUES))
    user, client = await connect(rabbitmq, 1), await connect(rabbitmq, 2)
    await asyncio.gather(*(user.publish(queue, b"1") for queue in (first, *others)))
    (delivery,) = await user.get(first)
    await user.ack(delivery)
    gone: list[QueueName] = []
    while not gone:  # its user has not ceased to use it yet
        deletion = asyncio.ensure_future(client.delete_unused([first]))
        while not deletion.done():
            assert set(others).difference(await client.queues()) == set()
        gone.extend(await deletion)
    assert gone == [first]
    assert first not in await user.queues()
    await user.close()
    await client.close()


async def test_a_scan_that_ends_while_rabbitmq_answers_late_costs_no_delivery(wire: Wire) -> None:
    parameters = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{wire.port}/%2F")
    connection = await open_connection(parameters)
    queue, holder = QueueName(f"test.{secrets.token_hex(4)}"), await connection.channel()
    await holder.declare(queue, {}, durable=False, exclusive=True)
    holder.publish(queue, b"1")
    message = await holder.get(queue)
    assert message is not None

    async def scan() -> None:
        async with locked(connection, queue, LATE_S / 4, random.Random(3)):
            wire.clog()

    scanning = asyncio.ensure_future(scan())
    either: set[asyncio.Future[Any]] = {scanning, connection.lost}
    await asyncio.wait(either, timeout=LATE_S, return_when=asyncio.FIRST_COMPLETED)
    assert not scanning.done()
    wire.unclog()
    await scanning
    holder.ack(message.tag)
    assert await holder.depth(queue) == 0
    await connection.close()
