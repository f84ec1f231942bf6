"""The registry of queue names, and the lock of a client that reads all messages of a queue."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Collection, Sequence

from qlm.broker.rabbitmq.connection import RESOURCE_LOCKED, Channel, Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Backoff
from qlm.broker.topology import REGISTRY, lock_of
from qlm.domain.ids import QueueName


class Registry:
    """The names of all queues, which one caller of a client reads at a time.

    A lock in RabbitMQ excludes other connections only, and all callers of a client are on one.
    """

    def __init__(self, timeout_s: float, rng: random.Random) -> None:
        """Work over any connection; the wait for other clients is limited to `timeout_s`."""
        self._timeout_s = timeout_s
        self._rng = rng
        self._turn = asyncio.Lock()

    async def names(self, connection: Connection) -> Sequence[QueueName]:
        """Return the registered names; delete duplicates."""
        async with self._turn, locked(connection, REGISTRY, self._timeout_s, self._rng):
            return await _read_names(connection)

    async def remove(self, connection: Connection, names: Collection[QueueName]) -> None:
        """Delete names; without an answer to the end of that in time, hang up."""
        timeout_s = self._timeout_s
        async with self._turn, locked(connection, REGISTRY, timeout_s, self._rng, end_s=timeout_s):
            await _read_names(connection, without=names)


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


async def _read_names(connection: Connection, without: Collection[QueueName] = ()) -> Sequence[QueueName]:
    names: set[QueueName] = set()
    channel = await connection.channel()
    try:
        while got := await channel.get(REGISTRY):
            name = QueueName(got.body.decode())
            if name in names or name in without:
                channel.ack(got.tag)
            names.add(name)
        return sorted(names.difference(without))
    finally:
        await channel.close()  # puts the names back
