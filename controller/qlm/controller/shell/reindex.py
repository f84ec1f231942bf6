"""Rebuilds the index of waiting requests from the class queues, which decide what was accepted."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_instance, hold_queue
from qlm.domain.errors import DeliveryLostError, UndecodableDataError
from qlm.domain.ids import InstanceId, QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import ControllerStore
from qlm.domain.request import Request, RequestRecord

log = logging.getLogger("qlm.controller")

_Message = tuple[Delivery, Request | UndecodableDataError]

BATCH: Final = 256

AT_ONCE: Final = 64
"""Messages of a queue that are indexed at once: one after the other, 500 took 7 s on a busy machine.

No agent gets a message of the queue meanwhile.
"""

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
        taken: list[Delivery] = []
        seen: set[RequestId] = set()
        indexed = removed = 0
        try:
            while batch := await self._broker.get(queue, BATCH):
                taken.extend(batch)
            for part in _parts([(delivery, _decoded(delivery)) for delivery in taken]):
                works = (self._index_one(delivery, request, seen) for delivery, request in part)
                results = await asyncio.gather(*works, return_exceptions=True)
                for (delivery, _), result in zip(part, results, strict=True):
                    if isinstance(result, BaseException):
                        continue
                    kept, created = result
                    indexed += created
                    if not kept:
                        taken.remove(delivery)
                        removed += 1
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
            return Reading(frozenset(seen), indexed, removed)
        finally:
            await self._give_back(reversed(taken))

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
            await self._give_back(left)
        return moved

    async def _return_one(self, delivery: Delivery) -> int:
        try:
            request = codec.decode_request(delivery.body)
        except UndecodableDataError as error:
            await self._dead_letter(delivery, str(error))
            return 0
        # Publish before indexing, so that no agent looks for a message that is not there yet.
        record = await self._store.record(request.id)
        if record is not None and not record.metadata.is_same_request(request):
            await self._ack(delivery)
            return 0
        known = request if record is None else as_known(request, record)
        await self._broker.publish(known.cls.queue, codec.encode_request(known))
        await self._store.enqueue(known.metadata())
        await self._ack(delivery)
        return 1

    async def _index_one(
        self, delivery: Delivery, request: Request | UndecodableDataError, seen: set[RequestId]
    ) -> tuple[bool, bool]:
        """Index one message of a queue.

        Args:
            delivery: The message.
            request: Its request, or why it has none.
            seen: The requests before it.

        Returns:
            Whether it is still in the queue, and whether its request was unknown.
        """
        if isinstance(request, UndecodableDataError):
            await self._dead_letter(delivery, str(request))
            return False, False
        if request.id in seen:
            await self._ack(delivery)
            return False, False
        enqueued = await self._store.enqueue(request.metadata())
        record, created = enqueued.record, enqueued.created and not self._is_new(request)
        if not record.metadata.is_same_request(request):
            await self._ack(delivery)  # its client got 422: the Idempotency-Key is another request's
            return False, False
        seen.add(request.id)
        known = as_known(request, record)
        if record.lease is not None:
            # It is leased: its message belongs to the holder's hold queue, and returns if that dies.
            await self._broker.publish(hold_queue(record.lease.holder.instance), delivery.body)
        elif record.outcome is None:
            if known.cls.queue == delivery.queue:
                return True, created
            await self._broker.publish(known.cls.queue, codec.encode_request(known))
        # It ended and the acknowledgement was lost, or its message is safe elsewhere.
        await self._ack(delivery)
        return False, created

    def _is_new(self, request: Request) -> bool:
        # Its gateway publishes a request before it indexes it.
        return self._clock.now_ns() - request.arrival_ns < IN_FLIGHT_NS

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        log.error("unreadable message moved from %s to %s: %s", delivery.queue, DEAD, reason)
        letter = codec.DeadLetter(
            reason=reason, queue=delivery.queue, at_ns=self._clock.now_ns(), body=delivery.body
        )
        await self._broker.publish(DEAD, codec.encode_dead_letter(letter))
        await self._ack(delivery)

    async def _give_back(self, taken: Iterable[Delivery]) -> None:
        """Return messages, also those behind one that cannot be: no other controller gets what is kept here.

        Raises:
            Exception: What the first of them met that could not be returned.
        """
        failed: Exception | None = None
        for delivery in taken:
            try:
                await self._broker.requeue(delivery)
            except DeliveryLostError:
                log.debug("delivery lost while reading %s", delivery.queue)
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _ack(self, delivery: Delivery) -> None:
        try:
            await self._broker.ack(delivery)
        except DeliveryLostError:
            # The broker delivers it again; the store then knows the request.
            log.debug("delivery lost while reading %s", delivery.queue)


def _decoded(delivery: Delivery) -> Request | UndecodableDataError:
    try:
        return codec.decode_request(delivery.body)
    except UndecodableDataError as error:
        return error


def _parts(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    """Divide messages into parts of up to `AT_ONCE`, none of which has two messages of one request."""
    part, ids = list[_Message](), set[RequestId]()
    for delivery, request in messages:
        id = request.id if isinstance(request, Request) else None
        if len(part) == AT_ONCE or id in ids:
            yield part
            part, ids = [], set()
        part.append((delivery, request))
        if id is not None:
            ids.add(id)
    if part:
        yield part
