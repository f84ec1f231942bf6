"""Use of queues by connections, so that a queue is deleted only while no connection uses it.

RabbitMQ confirms a message that reaches a queue just as it is deleted, and does not count unacknowledged
ones when it is asked to delete an empty queue: both would be lost. So a connection that uses a queue binds a
private queue of its own under that name, and the binding ends with the connection. A client that deletes a
queue first declares a barrier, a queue that only its connection may touch, then looks for bindings. A user
binds first, then looks for a barrier: one of the two sees the other.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from qlm.broker.rabbitmq.connection import (
    NOT_FOUND,
    RESOURCE_LOCKED,
    Channel,
    Connection,
    LinkBrokenError,
    PublishEvents,
)
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName

EXCHANGE: Final = "amq.direct"
"""Exchange of the bindings; every RabbitMQ has it."""

BARRIER_PAUSE_S: Final = 0.02
"""Time between two looks for a barrier."""


def barrier_of(queue: QueueName) -> str:
    """Return the name of the exclusive queue that keeps new users from a queue."""
    return f"qlm.barrier.{_digest(queue)}"


class Usage:
    """The queues that one connection uses."""

    def __init__(self) -> None:
        self._private = ""
        self._kept: Counter[QueueName] = Counter()

    def down(self) -> None:
        """Forget the connection: its bindings are gone."""
        self._private = ""

    @contextlib.contextmanager
    def kept(self, queue: QueueName) -> Iterator[None]:
        """Keep `end` from a queue while its use begins, or lasts."""
        self._kept[queue] += 1
        try:
            yield
        finally:
            self._kept -= Counter([queue])

    def keeps(self, queue: QueueName) -> bool:
        """Return whether a caller keeps `end` from a queue."""
        return queue in self._kept

    async def begin(self, control: Channel, queue: QueueName) -> None:
        """Use a queue from now on; it may be just being deleted (`until_unbarred`)."""
        if not self._private:
            self._private = await control.private_queue()
        await control.bind(self._private, EXCHANGE, _key(queue))

    async def end(self, control: Channel, queue: QueueName) -> None:
        """Use a queue no more, unless it is kept."""
        if self._private and queue not in self._kept:
            await control.unbind(self._private, EXCHANGE, _key(queue))


async def until_unbarred(connection: Connection, queue: QueueName, timeout_s: float) -> None:
    """Wait while a queue that this connection has begun to use is being deleted.

    Raises:
        BrokerUnavailableError: That took too long.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if not await _exists(connection, barrier_of(queue)):
                    return
                await asyncio.sleep(BARRIER_PAUSE_S)
    except TimeoutError:
        message = f"queue {queue} was still being deleted after {timeout_s:g} s"
        raise BrokerUnavailableError(message) from None


async def is_used(connection: Connection, queue: QueueName) -> bool:
    """Return True if any connection uses a queue."""
    channel = await connection.channel()
    try:
        return await reaches_a_queue(channel, _key(queue))
    except LinkBrokenError:
        return True
    finally:
        channel.drop()


async def reaches_a_queue(channel: Channel, key: str, body: bytes = b"", exchange: str = EXCHANGE) -> bool:
    """Publish one message on a new channel; return True if a queue took it.

    Raises:
        LinkBrokenError: The channel broke before the confirm.
    """
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    returned: list[int] = []
    channel.on_broken = lambda: None if answer.done() else answer.set_result(False)
    await channel.confirm(
        PublishEvents(
            confirmed=lambda *_: None if answer.done() else answer.set_result(not returned),
            returned=lambda number, _: returned.append(number),
        )
    )
    channel.publish(key, body, exchange)
    taken = await answer
    if channel.broken is not None:
        raise channel.broken
    return taken


def _key(queue: QueueName) -> str:
    return f"qlm.use.{_digest(queue)}"


def _digest(queue: QueueName) -> str:
    """Return a short stand-in for a name that may have the full length already."""
    return sha256(queue.encode()).hexdigest()[:32]


async def _exists(connection: Connection, queue: str) -> bool:
    channel = await connection.channel()
    try:
        await channel.depth(queue)
    except LinkBrokenError as error:
        if error.code == NOT_FOUND:
            return False
        if error.code == RESOURCE_LOCKED:
            return True
        raise
    await channel.close()
    return True
