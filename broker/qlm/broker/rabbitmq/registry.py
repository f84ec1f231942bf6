"""The registry of queue names, and the lock of a client that reads all messages of a queue."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Collection, Sequence

from qlm.broker.rabbitmq.connection import RESOURCE_LOCKED, Channel, Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Backoff
from qlm.broker.topology import QUEUE_NAME_BYTES_MAX, REGISTRY, lock_of
from qlm.domain.ids import QueueName

log = logging.getLogger("qlm.broker")


class Registry:
    """The names of all queues, which one caller of a client reads at a time.

    A lock in RabbitMQ excludes other connections only, and all callers of a client are on one.
    """

    def __init__(self, timeout_s: float, rng: random.Random) -> None:
        """Work over any connection; the wait for other clients is limited to `timeout_s`."""
        self._timeout_s = timeout_s
        self._rng = rng
        self._turn = asyncio.Lock()
        self._warned = False

    async def names(self, connection: Connection) -> Sequence[QueueName]:
        """Return the registered names; delete duplicates."""
        async with self._turn, locked(connection, REGISTRY, self._timeout_s, self._rng):
            return await self._read(connection)

    async def remove(self, connection: Connection, names: Collection[QueueName]) -> None:
        """Delete names; without an answer to the end of that in time, hang up."""
        timeout_s = self._timeout_s
        async with self._turn, locked(connection, REGISTRY, timeout_s, self._rng, end_s=timeout_s):
            await self._read(connection, without=names)

    async def _read(self, connection: Connection, without: Collection[QueueName] = ()) -> Sequence[QueueName]:
        names: set[QueueName] = set()
        channel = await connection.channel()
        try:
            while got := await channel.get(REGISTRY):
                name = _name_in(got.body)
                if name is None:
                    self._warn(got.body)
                    continue
                if name in names or name in without:
                    channel.ack(got.tag)
                names.add(name)
            return sorted(names.difference(without))
        finally:
            await channel.close()  # puts the names back

    def _warn(self, body: bytes) -> None:
        """Log once that a message is no name: no program but QLM should write there."""
        if not self._warned:
            self._warned = True
            log.warning("%s has a message that names no queue, and is left there: %.100r", REGISTRY, body)


@contextlib.asynccontextmanager
async def locked(
    connection: Connection,
    queue: QueueName,
    timeout_s: float,
    rng: random.Random,
    *,
    end_s: float | None = None,
) -> AsyncIterator[None]:
    """Lock a queue against other scans in the cluster; the lock ends with the connection.

    Args:
        timeout_s: Time to wait for others to give it back.
        end_s: Time to wait for an answer when giving it back, as in `give_back`.
    """
    lock = lock_of(queue)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    for pause_s in Backoff(first_s=0.01, max_s=0.2).pauses_s(rng):
        channel = await connection.channel()
        try:
            await take(connection, channel, lock, end_s)
            break
        except LinkBrokenError as error:
            if error.code != RESOURCE_LOCKED or loop.time() > give_up_s:
                raise
        await asyncio.sleep(pause_s)
    try:
        yield
    finally:
        await give_back(connection, channel, lock, end_s)


async def take(connection: Connection, channel: Channel, lock: str, end_s: float | None) -> None:
    """Declare a private queue that keeps others out; `RESOURCE_LOCKED` if another process has it."""
    try:
        await channel.declare(lock, {}, durable=False, exclusive=True)
    except asyncio.CancelledError:  # it may be there
        await give_back(connection, channel, lock, end_s)
        raise


async def give_back(connection: Connection, channel: Channel, lock: str, end_s: float | None) -> None:
    """Delete a private queue that keeps others out.

    Args:
        end_s: Without an answer in this time, hang up, which ends it, and returns all messages that are not
            acknowledged. None waits.
    """
    try:
        async with asyncio.timeout(end_s):
            await channel.delete(lock)
            await channel.close()
    except LinkBrokenError:
        pass
    except TimeoutError:
        connection.hang_up()


def _name_in(body: bytes) -> QueueName | None:
    """Return the name in a message; None if no queue can have it."""
    try:
        return QueueName(body.decode()) if 0 < len(body) <= QUEUE_NAME_BYTES_MAX else None
    except UnicodeDecodeError:
        return None
