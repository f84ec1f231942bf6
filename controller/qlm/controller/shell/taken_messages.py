"""Messages that a reading of a queue has taken: each of them is removed or goes back."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from qlm.broker import codec
from qlm.domain.errors import DeliveryLostError, UndecodableDataError
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.request import Request

log = logging.getLogger("qlm.controller")

BATCH: Final = 256

AT_ONCE: Final = 64
"""Messages of a queue that are indexed, or returned, at once: one by one, 500 took 7 s on a busy machine.

No agent gets a message of the queue meanwhile, and no other controller finds it.
"""

Message = tuple[Delivery, Request | UndecodableDataError]
"""A message, and its request or why it has none."""


class TakenMessages:
    """All messages of a queue, in its order; use it as an asynchronous context.

    Attributes:
        removed: Messages removed so far.
    """

    def __init__(self, broker: Broker, queue: QueueName) -> None:
        self._broker = broker
        self._queue = queue
        # By identity: messages of a long queue are removed from anywhere in it.
        self._left: dict[int, Delivery] = {}
        self.removed = 0

    async def __aenter__(self) -> "TakenMessages":
        try:
            while batch := await self._broker.get(self._queue, BATCH):
                self._left |= {id(each): each for each in batch}
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # The last one first, since a returned message goes to the front.
        await give_back(self._broker, reversed(self._left.values()))

    def parts(self) -> Iterator[list[Message]]:
        """Return the messages in parts of up to `AT_ONCE`, none of which has two of one request."""
        part, ids = list[Message](), set[RequestId]()
        for delivery in tuple(self._left.values()):
            request = _decoded(delivery)
            request_id = request.id if isinstance(request, Request) else None
            if len(part) == AT_ONCE or request_id in ids:
                yield part
                part, ids = [], set()
            part.append((delivery, request))
            if request_id is not None:
                ids.add(request_id)
        if part:
            yield part

    async def remove(self, delivery: Delivery) -> None:
        """Remove a message from the queue."""
        await acknowledge(self._broker, delivery)
        del self._left[id(delivery)]
        self.removed += 1

    async def keep_first(self, first: Delivery, second: Delivery) -> bool:
        """Return the first of two messages of a request to its place, and remove the second.

        Nothing is done, with False as the result, if the connection of the first is gone: the second may be
        the same message, delivered again.
        """
        try:
            await self._broker.requeue(first)
        except DeliveryLostError:
            return False
        del self._left[id(first)]
        await self.remove(second)
        return True


async def acknowledge(broker: Broker, delivery: Delivery) -> None:
    """Acknowledge a message, unless its connection is gone."""
    try:
        await broker.ack(delivery)
    except DeliveryLostError:
        # The broker delivers it again; the store then knows the request.
        log.debug("delivery lost while reading %s", delivery.queue)


async def give_back(broker: Broker, taken: Iterable[Delivery]) -> None:
    """Return messages, also those behind one that cannot be: no other controller gets what is kept here.

    Raises:
        Exception: What the first of them met that could not be returned.
    """
    failed = list[Exception]()
    left = list(taken)
    for start in range(0, len(left), AT_ONCE):
        part = left[start : start + AT_ONCE]
        await asyncio.gather(*(_give_one_back(broker, each, failed) for each in part))
    if failed:
        raise failed[0]


async def _give_one_back(broker: Broker, delivery: Delivery, failed: list[Exception]) -> None:
    try:
        await broker.requeue(delivery)
    except DeliveryLostError:
        log.debug("delivery lost while reading %s", delivery.queue)
    except Exception as error:
        failed.append(error)


def _decoded(delivery: Delivery) -> Request | UndecodableDataError:
    try:
        return codec.decode_request(delivery.body)
    except UndecodableDataError as error:
        return error
