"""Deletion of queues that no client uses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from qlm.broker.rabbitmq.connection import NOT_FOUND, RESOURCE_LOCKED, Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Link
from qlm.broker.rabbitmq.registry import Registry, give_back, take
from qlm.broker.rabbitmq.usage import barrier_of, is_used
from qlm.broker.topology import QueueKind, QueueType
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName
from qlm.domain.shell.tasks import end_tasks

SETTLE_S: Final = 0.1
"""Time for nodes of a RabbitMQ cluster to see each other's bindings."""


class Dropper:
    """Deletes queues; lives in the event loop of the thread.

    Barriers and deletions are on the connection of gets: if it breaks, all of them end. The look for users
    publishes, so it is on the other connection, from which RabbitMQ may cease to read.
    """

    def __init__(
        self, getting: Link, publishing: Link, kind: QueueKind, registry: Registry, timeout_s: float
    ) -> None:
        """Work over started links; each call is limited to `timeout_s`, and as much to clean up."""
        self._getting = getting
        self._publishing = publishing
        self._kind = kind
        self._registry = registry
        self._timeout_s = timeout_s

    async def drop(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        """Delete those of the queues that are empty and not used; return their names."""
        holding = await self._getting.connection(self._timeout_s)
        asking = await self._publishing.connection(self._timeout_s)
        try:
            _refuse_blocked(asking)
            async with asyncio.timeout(self._timeout_s), contextlib.AsyncExitStack() as barriers:
                barred = [
                    queue
                    for queue in queues
                    if await barriers.enter_async_context(_barred(holding, queue, self._timeout_s))
                ]
                await asyncio.sleep(SETTLE_S if barred else 0)
                gone = [queue for queue in barred if await self._deleted(holding, asking, queue)]
                if gone:
                    await self._registry.remove(holding, gone)
                return gone
        except (LinkBrokenError, TimeoutError) as error:
            why = str(error) or f"no answer in {self._timeout_s:g} s"
            raise BrokerUnavailableError(f"idle queues were not deleted: {why}") from error

    async def _deleted(self, holding: Connection, asking: Connection, queue: QueueName) -> bool:
        if await _is_used(asking, queue):
            return False
        channel = await holding.channel()
        try:
            if await channel.depth(queue):
                await channel.close()
                return False
            # A publisher of an earlier version does not say that it uses a queue.
            await channel.delete(queue, if_empty=self._kind.type is QueueType.CLASSIC)
        except LinkBrokenError as error:
            if channel.broken is None or holding.lost.done():
                raise
            return error.code == NOT_FOUND
        await channel.close()
        return True


async def _is_used(asking: Connection, queue: QueueName) -> bool:
    """Return True if any connection uses a queue; raises once the broker reads no more from this one."""
    looking = asyncio.ensure_future(is_used(asking, queue))
    blocked = asyncio.ensure_future(asking.until_blocked())
    try:
        await asyncio.wait({looking, blocked}, return_when=asyncio.FIRST_COMPLETED)
        if not looking.done():
            _refuse_blocked(asking)
        return await looking
    finally:
        await end_tasks([looking, blocked])


def _refuse_blocked(connection: Connection) -> None:
    if connection.blocked is not None:
        raise LinkBrokenError(f"RabbitMQ has blocked publishers ({connection.blocked})")


@contextlib.asynccontextmanager
async def _barred(connection: Connection, queue: QueueName, timeout_s: float) -> AsyncIterator[bool]:
    """Keep new users from a queue meanwhile; False if another process does."""
    barrier, channel = barrier_of(queue), await connection.channel()
    try:
        await take(connection, channel, barrier, timeout_s)
    except LinkBrokenError as error:
        if error.code != RESOURCE_LOCKED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        await give_back(connection, channel, barrier, timeout_s)
