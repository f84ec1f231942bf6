"""Messages of other programs in the registry of queue names: they hide no queue, and stay."""

import random
import secrets
from collections.abc import AsyncIterator

import pika
import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.topology import QUEUE_NAME_BYTES_MAX, REGISTRY, hold_instance
from qlm.domain.ids import QueueName
from support.rabbitmq import RabbitMQ

FOREIGN = (b"", b"\xff", b"qlm.class." + b"x" * QUEUE_NAME_BYTES_MAX, b"qlm.hold.~ff")


@pytest.fixture
async def broker(rabbitmq: RabbitMQ) -> AsyncIterator[RabbitBroker]:
    broker = await RabbitBroker.connect(RabbitSettings(url=rabbitmq.url), random.Random(7))
    yield broker
    await broker.close()


async def test_what_names_no_queue_hides_none_and_is_logged_once(
    broker: RabbitBroker, rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    """One such message kept the controller from planning anything."""
    queue = QueueName(f"test.{secrets.token_hex(4)}")
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        await broker.publish(queue, b"1")
        for body in FOREIGN:
            channel.basic_publish("", REGISTRY, body)
        for _ in range(2):
            names = await broker.queues()
            assert queue in names
            for name in names:  # as a controller does
                hold_instance(name)
                await broker.depth(name)
        await broker.delete_unused([queue])
        assert channel.queue_declare(REGISTRY, passive=True).method.message_count >= len(FOREIGN)
        channel.queue_purge(REGISTRY)
    assert caplog.text.count("names no queue") == 1
