"""Rebuild the index of waiting requests from the global queue, which is the truth about what was accepted."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_instance, hold_queue
from qlm.domain.errors import DeliveryLostError, StoreCorruptError
from qlm.domain.ids import InstanceId, QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.request import Request, RequestRecord

log = logging.getLogger("qlm.controller")

BATCH: Final = 256
CLASS_PREFIX: Final = "qlm.class."


def as_known(request: Request, record: RequestRecord) -> Request:
    """A request as its message must say: if nobody runs it, in that of its classes in which it waits.

    A demotion that broke off leaves a message in the class itself of a request that waits in its late class,
    or the other way round; nobody would look for it there.
    """
    cls = record.card.cls
    if record.lease or record.outcome or cls == request.cls or cls.missed() != request.cls.missed():
        return request
    return replace(request, cls=cls)


class Reindexer:
    """Reads messages to bring the store in line with them; every message it takes it gives back or ends."""

    def __init__(self, broker: Broker, store: Store, clock: Clock) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock

    async def class_queues(self) -> Sequence[QueueName]:
        """Names of all class queues ever used."""
        return [queue for queue in await self._broker.queues() if queue.startswith(CLASS_PREFIX)]

    async def index_all(self) -> int:
        """Index every message of every class queue; return how many requests wait."""
        return sum([await self.index(queue) for queue in await self.class_queues()])

    async def index(self, queue: QueueName) -> int:
        """Index every message of a class queue, leaving each in its place.

        All are taken before the first is given back, since a returned message comes back to the front. A
        message whose request has ended is deleted, and so is a second one of a request: it would make each
        look at the queue find more than is known. One that cannot be read becomes a dead letter.

        Returns:
            How many requests wait in it.
        """
        taken: list[Delivery] = []
        seen: set[RequestId] = set()
        try:
            while batch := await self._broker.get(queue, BATCH):
                taken.extend(batch)
            for delivery in list(taken):
                if not await self._index_one(delivery, seen):
                    taken.remove(delivery)
            return len(taken)
        finally:
            for delivery in reversed(taken):
                await self._give_back(delivery)

    async def empty_hold_queues(self, alive: set[InstanceId]) -> int:
        """Move what dead instances held back to its class queue, so that others can pull it.

        Returns:
            How many messages were moved.
        """
        moved = 0
        for queue in await self._broker.queues():
            instance = hold_instance(queue)
            if instance is None or instance in alive:
                continue
            while batch := await self._broker.get(queue, BATCH):
                moved += await self._send_home(batch)
        return moved

    async def _send_home(self, batch: Sequence[Delivery]) -> int:
        left, moved = list(batch), 0
        try:
            while left:
                moved += await self._send_one_home(left[0])
                left.pop(0)
        finally:
            for delivery in left:
                await self._give_back(delivery)
        return moved

    async def _send_one_home(self, delivery: Delivery) -> int:
        try:
            request = codec.decode_request(delivery.body)
        except StoreCorruptError as error:
            await self._bury(delivery, str(error))
            return 0
        # Published before it is indexed: nobody is to look for it in vain.
        record = await self._store.record(request.id)
        home = request if record is None else as_known(request, record)
        await self._broker.publish(home.cls.queue, codec.encode_request(home))
        await self._store.enqueue(home.card())
        await self._ack(delivery)
        return 1

    async def _index_one(self, delivery: Delivery, seen: set[RequestId]) -> bool:
        """Index one message of a queue in which these were seen; False if it is gone now."""
        try:
            request = codec.decode_request(delivery.body)
        except StoreCorruptError as error:
            await self._bury(delivery, str(error))
            return False
        if request.id in seen:
            await self._ack(delivery)
            return False
        seen.add(request.id)
        record = (await self._store.enqueue(request.card())).record
        home = as_known(request, record)
        if record.lease is not None:
            # It runs: its message belongs to its holder. If that one is dead, it comes back from there.
            await self._broker.publish(hold_queue(record.lease.holder.instance), delivery.body)
        elif record.outcome is None:
            if home.cls.queue == delivery.queue:
                return True
            await self._broker.publish(home.cls.queue, codec.encode_request(home))
        # It ended and its acknowledgement was lost, or it is safe elsewhere: this message has done its work.
        await self._ack(delivery)
        return False

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        log.error("a message in %s goes to %s: %s", delivery.queue, DEAD, reason)
        letter = codec.DeadLetter(
            reason=reason, queue=delivery.queue, at_ns=self._clock.now_ns(), body=delivery.body
        )
        await self._broker.publish(DEAD, codec.encode_dead_letter(letter))
        await self._ack(delivery)

    async def _give_back(self, delivery: Delivery) -> None:
        try:
            await self._broker.requeue(delivery)
        except DeliveryLostError:
            log.debug("delivery lost while reading %s", delivery.queue)

    async def _ack(self, delivery: Delivery) -> None:
        try:
            await self._broker.ack(delivery)
        except DeliveryLostError:
            # It is handed out again, and meets what was just written.
            log.debug("delivery lost while reading %s", delivery.queue)
