"""Rebuild the index of waiting requests from the global queue, which is the truth about what was accepted."""

import logging
from typing import Final

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_instance
from qlm.domain.errors import StoreCorruptError
from qlm.domain.ids import InstanceId, QueueName
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.store import Store

log = logging.getLogger("qlm.controller")

BATCH: Final = 256
CLASS_PREFIX: Final = "qlm.class."


async def reindex(broker: Broker, store: Store) -> int:
    """Index every message of every class queue, leaving each in its place.

    All messages of a queue are taken before the first is given back, since a returned message comes
    back to the front. A message that cannot be read goes to the dead-letter queue.

    Returns:
        How many requests wait.
    """
    found = 0
    for queue in await broker.queues():
        if not queue.startswith(CLASS_PREFIX):
            continue
        taken: list[Delivery] = []
        while batch := await broker.get(queue, BATCH):
            taken.extend(batch)
        kept = [delivery for delivery in taken if await _index(broker, store, delivery)]
        for delivery in reversed(kept):
            await broker.requeue(delivery)
        found += len(kept)
    return found


async def drain_hold_queues(broker: Broker, store: Store, alive: set[InstanceId]) -> int:
    """Move what dead instances held back to its class queue, so that others can pull it.

    Returns:
        How many messages were moved.
    """
    moved = 0
    for queue in await broker.queues():
        instance = hold_instance(queue)
        if instance is None or instance in alive:
            continue
        while batch := await broker.get(queue, BATCH):
            for delivery in batch:
                moved += await _send_home(broker, store, delivery)
    return moved


async def _send_home(broker: Broker, store: Store, delivery: Delivery) -> int:
    try:
        request = codec.decode_request(delivery.body)
    except StoreCorruptError as error:
        await _bury(broker, delivery, str(error))
        return 0
    await broker.publish(request.cls.queue, delivery.body)
    await store.enqueue(request.card())
    await broker.ack(delivery)
    return 1


async def _index(broker: Broker, store: Store, delivery: Delivery) -> bool:
    try:
        request = codec.decode_request(delivery.body)
    except StoreCorruptError as error:
        await _bury(broker, delivery, str(error))
        return False
    known = await store.enqueue(request.card())
    if known.record.outcome is not None:
        # Its result was stored, its acknowledgement lost: the message has done its work.
        await broker.ack(delivery)
        return False
    return True


async def _bury(broker: Broker, delivery: Delivery, reason: str) -> None:
    log.error("a message in %s goes to %s: %s", delivery.queue, DEAD, reason)
    letter = codec.DeadLetter(reason=reason, queue=delivery.queue, at_ns=0, body=delivery.body)
    await broker.publish(QueueName(DEAD), codec.encode_dead_letter(letter))
    await broker.ack(delivery)
