"""Deployments of different names on one vhost and one Redis, and the former key of the configuration."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pika
import pytest
from pydantic import ValidationError

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.topology import hold_queue
from qlm.cli.config.settings import Config
from qlm.cli.runtime.backends import Backends, open_backends
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.ids import ControllerId, InstanceId, QueueName
from support.qlm_process import emulated
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

QUEUE = QueueName("qlm.class.named.batch.all")


def config(rabbitmq: RabbitMQ, redis: RedisServer, **more: str) -> Config:
    return Config.model_validate({**emulated("m"), "broker": rabbitmq.url, "store": redis.url, **more})


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def test_deployments_of_different_names_do_not_touch_each_other(
    rabbitmq: RabbitMQ, redis_server: RedisServer, stack: AsyncExitStack
) -> None:
    parts: dict[str, Backends] = {}
    for name in ("first", "second"):
        settings = config(rabbitmq, redis_server, deployment_name=name)
        parts[name] = await open_backends(settings, SystemClock(), stack)
    brokers = {name: await each.open_broker() for name, each in parts.items()}
    for broker in brokers.values():
        stack.push_async_callback(broker.close)
    hold = hold_queue(InstanceId("gpu-0"))
    for queue in (QUEUE, hold):
        await brokers["first"].publish(queue, b"of the first")
        assert await brokers["second"].depth(queue) == 0
        assert await brokers["second"].get(queue) == []
    assert await brokers["second"].queues() == []
    assert sorted(await brokers["first"].queues()) == [QUEUE, hold]
    await brokers["second"].publish(QUEUE, b"of the second")
    for name in ("first", "second"):
        assert await brokers[name].peek(QUEUE, bytes, 9) == [b"of the " + name.encode()]
        (delivery,) = await brokers[name].get(QUEUE, 9)
        assert (delivery.queue, delivery.body) == (QUEUE, b"of the " + name.encode())
        await brokers[name].requeue(delivery)
        assert await brokers[name].depth(QUEUE) == 1
        led = await parts[name].store.acquire_leadership(ControllerId(name), 60.0)
        assert led.leader == name


@pytest.mark.parametrize("more", [{}, {"store_prefix": "other:"}])
async def test_queues_without_a_given_name_are_those_of_earlier_versions(
    rabbitmq: RabbitMQ, redis_server: RedisServer, stack: AsyncExitStack, more: dict[str, str]
) -> None:
    """What waits there before an upgrade or a rollback is found after it."""
    parts = await open_backends(config(rabbitmq, redis_server, **more), SystemClock(), stack)
    broker = await parts.open_broker()
    stack.push_async_callback(broker.close)
    queue = QueueName(f"{QUEUE}.{len(more)}")
    await broker.publish(queue, b"waits")
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        _, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert body == b"waits"


async def test_the_name_stands_before_each_queue_in_rabbitmq(rabbitmq: RabbitMQ) -> None:
    settings = RabbitSettings(url=rabbitmq.url, deployment="third")
    broker = await RabbitBroker.connect(settings, random.Random(3))
    try:
        await broker.publish(QUEUE, b"seen")
    finally:
        await broker.close()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        _, _, body = connection.channel().basic_get("third.class.named.batch.all", auto_ack=True)
        _, _, name = connection.channel().basic_get("third.registry", auto_ack=True)
    assert (body, name) == (b"seen", QUEUE.encode())


def test_the_former_key_is_read_and_not_mixed_with_the_new_one(
    rabbitmq: RabbitMQ, redis_server: RedisServer
) -> None:
    assert config(rabbitmq, redis_server).key_prefix == "qlm:"
    assert config(rabbitmq, redis_server, deployment_name="prod").key_prefix == "prod:"
    former = config(rabbitmq, redis_server, store_prefix="old:")
    assert (former.key_prefix, former.deployment_name) == ("old:", "qlm")
    with pytest.raises(ValidationError, match="expected deployment_name alone"):
        config(rabbitmq, redis_server, store_prefix="old:", deployment_name="prod")


@pytest.mark.parametrize("name", ["", "A", "a.b", "a:b", "-a", "a" * 21])
def test_a_name_keeps_queues_and_keys_of_deployments_apart(
    rabbitmq: RabbitMQ, redis_server: RedisServer, name: str
) -> None:
    with pytest.raises(ValidationError, match="deployment_name"):
        config(rabbitmq, redis_server, deployment_name=name)
