"""Messages of other programs in the registry of queue names, and behind the mark of a deployment."""

import random
import secrets
from collections.abc import AsyncIterator

import pika
import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.rabbitmq.deployment import RabbitMark
from qlm.broker.topology import DEPLOYMENT, QUEUE_NAME_BYTES_MAX, REGISTRY, hold_instance, queue_in
from qlm.domain.errors import UndecodableDataError
from qlm.domain.ids import QueueName
from qlm.domain.ports.deployment import DeploymentMark
from support.gateway import until
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


async def test_the_mark_of_a_deployment_counts_with_messages_of_others_behind_it(rabbitmq: RabbitMQ) -> None:
    """One such message kept every process from starting."""
    name, ours = f"foreign-{secrets.token_hex(4)}", DeploymentMark(id="ours", partner="redis://h")
    member = RabbitMark(RabbitSettings(url=rabbitmq.url, deployment=name), random.Random(7))
    queue = queue_in(name, DEPLOYMENT)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        assert await member.join(ours)
        for body in (b"\xff", b"{}", b"[]"):
            channel.basic_publish("", queue, body)
        await until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 4)
        assert await member.look() == ours
        assert await member.join(ours)
        await member.leave(ours.id)
        other = DeploymentMark(id="other", partner="redis://h")
        assert await member.join(other, instead_of=ours.id)
        assert await member.look() == other
        channel.queue_purge(queue)
        channel.basic_publish("", queue, b"{}")
        await until(lambda: channel.queue_declare(queue, passive=True).method.message_count == 1)
        with pytest.raises(UndecodableDataError, match="cannot be read"):
            await member.look()
        await member.close()
        channel.queue_delete(queue)
