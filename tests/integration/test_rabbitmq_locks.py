"""What callers keep from each other in RabbitMQ."""

import asyncio
import random
import secrets

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.domain.ids import QueueName
from support.rabbitmq import RabbitMQ

QUEUES = 60


async def connect(node: RabbitMQ, seed: int) -> RabbitBroker:
    return await RabbitBroker.connect(RabbitSettings(url=node.url, forget_s=0.1), random.Random(seed))


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
