"""Rebuilds the index of waiting requests from the class queues, which decide what was accepted."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_instance, hold_queue
from qlm.controller.shell.taken_messages import BATCH, TakenMessages, acknowledge, give_back
from qlm.domain.errors import StoreDataError, UndecodableDataError
from qlm.domain.ids import InstanceId, QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import ControllerStore
from qlm.domain.request import Request, RequestRecord
from qlm.domain.view import Enqueued

log = logging.getLogger("qlm.controller")

CLASS_PREFIX: Final = "qlm.class."

IN_FLIGHT_NS: Final = 2_000_000_000
"""Age up to which a request that the store does not know may still be on its way there."""


class Reading(NamedTuple):
    """Results of reading a queue.

    Attributes:
        ids: Requests whose messages are in the queue.
        indexed: Requests that the store did not know, apart from those that have just arrived.
        removed: Messages that do not belong into the queue: ended, duplicate, elsewhere or unreadable.
    """

    ids: frozenset[RequestId]
    indexed: int
    removed: int

    @property
    def repairs(self) -> int:
        """Number of repairs."""
        return self.indexed + self.removed


def as_known(request: Request, record: RequestRecord) -> Request:
    """Return the request with the class in which the store has it waiting.

    An interrupted demotion leaves the message in the queue of the original class while the request waits in
    the late class, or the reverse; a retry may have got another class. No agent would find the message there.
    """
    cls = record.metadata.cls
    if record.lease or record.outcome or cls.model != request.model or cls == request.cls:
        return request
    return replace(request, cls=cls)


class Reindexer:
    """Indexes messages in the store; returns or acknowledges every message that it takes."""

    def __init__(self, broker: Broker, store: ControllerStore, clock: Clock) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock

    async def class_queues(self) -> Sequence[QueueName]:
        """Return the names of all class queues."""
        return [queue for queue in await self._broker.queues() if queue.startswith(CLASS_PREFIX)]

    async def index_all(self) -> int:
        """Index all messages of all class queues; return how many requests the store did not know."""
        return sum([(await self.index(queue)).indexed for queue in await self.class_queues()])

    async def index(self, queue: QueueName) -> Reading:
        """Index all messages of a class queue in place.

        Messages of ended requests are deleted. So are duplicates: the queue would always seem to hold unknown
        messages. Unreadable messages become dead letters.
        """
        # All are taken before the first is returned, since a returned message goes to the front.
        seen: dict[RequestId, Delivery | None] = {}
        indexed = 0
        async with TakenMessages(self._broker, queue) as taken:
            for part in taken.parts():
                works = (self._index_one(taken, delivery, request, seen) for delivery, request in part)
                results = await asyncio.gather(*works, return_exceptions=True)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                    indexed += result
        return Reading(frozenset(seen), indexed, taken.removed)

    async def empty_hold_queues(self, alive: set[InstanceId]) -> int:
        """Move messages from the hold queues of dead instances to their class queues; return their number."""
        moved = 0
        for queue in await self._broker.queues():
            instance = hold_instance(queue)
            if instance is None or instance in alive:
                continue
            while batch := await self._broker.get(queue, BATCH):
                moved += await self._return_batch(batch)
        return moved

    async def _return_batch(self, batch: Sequence[Delivery]) -> int:
        left, moved = list(batch), 0
        try:
            while left:
                moved += await self._return_one(left[0])
                left.pop(0)
        finally:
            await give_back(self._broker, left)
        return moved

    async def _return_one(self, delivery: Delivery) -> int:
        try:
            request = codec.decode_request(delivery.body)
        except UndecodableDataError as error:
            await self._dead_letter(delivery, str(error))
            await acknowledge(self._broker, delivery)
            return 0
        # Publish before indexing, so that no agent looks for a message that is not there yet.
        record = await self._record(request.id)
        if record is not None and not record.metadata.is_same_request(request):
            await acknowledge(self._broker, delivery)
            return 0
        known = request if record is None else as_known(request, record)
        await self._broker.publish(known.cls.queue, codec.encode_request(known))
        await self._enqueued(known)
        await acknowledge(self._broker, delivery)
        return 1

    async def _record(self, id: RequestId) -> RequestRecord | None:
        """Return the record of a request, if there is one that can be read."""
        try:
            return await self._store.record(id)
        except StoreDataError:
            return None

    async def _enqueued(self, request: Request) -> Enqueued | None:
        """Index a request; return None if its record cannot be read.

        No other request, and no plan, may wait for that. Agents need no record to serve the request, so its
        message stays in a queue.
        """
        try:
            return await self._store.enqueue(request.metadata())
        except StoreDataError as error:
            log.warning("the record of %s cannot be read: %s", request.id, error)
            return None

    async def _index_one(
        self,
        taken: TakenMessages,
        delivery: Delivery,
        request: Request | UndecodableDataError,
        seen: dict[RequestId, Delivery | None],
    ) -> bool:
        """Index one message of a queue; return True if its request was unknown.

        Args:
            taken: The messages of the queue.
            delivery: The message.
            request: Its request, or why it has none.
            seen: The requests before it, each with its message if that waits to be returned to the queue.
        """
        if isinstance(request, UndecodableDataError):
            await self._dead_letter(delivery, str(request))
            await taken.remove(delivery)
            return False
        enqueued = await self._enqueued(request)
        if enqueued is None:
            seen.setdefault(request.id, delivery)
            return False
        if not enqueued.record.metadata.is_same_request(request):
            await taken.remove(delivery)  # its client got 422: the Idempotency-Key is another request's
            return False
        former = seen.get(request.id)
        if former is not None and await taken.keep_first(former, delivery):
            seen[request.id] = None
            return False
        if former is None and request.id in seen:
            await taken.remove(delivery)
            return False
        belongs = await self._belongs(delivery, request, enqueued.record)
        seen[request.id] = delivery if belongs else None
        if not belongs:
            await taken.remove(delivery)
        return enqueued.created and not self._is_new(request)

    async def _belongs(self, delivery: Delivery, request: Request, record: RequestRecord) -> bool:
        """Return True if a message belongs into its queue; otherwise publish it where it is needed."""
        known = as_known(request, record)
        if record.lease is not None:
            # It is leased: its message belongs to the holder's hold queue, and returns if that dies.
            await self._broker.publish(hold_queue(record.lease.holder.instance), delivery.body)
        elif record.outcome is None:
            if known.cls.queue == delivery.queue:
                return True
            await self._broker.publish(known.cls.queue, codec.encode_request(known))
        # It ended and the acknowledgement was lost, or its message is safe elsewhere.
        return False

    def _is_new(self, request: Request) -> bool:
        # Its gateway publishes a request before it indexes it.
        return self._clock.now_ns() - request.arrival_ns < IN_FLIGHT_NS

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        log.error("unreadable message moved from %s to %s: %s", delivery.queue, DEAD, reason)
        letter = codec.DeadLetter(
            reason=reason, queue=delivery.queue, at_ns=self._clock.now_ns(), body=delivery.body
        )
        await self._broker.publish(DEAD, codec.encode_dead_letter(letter))
