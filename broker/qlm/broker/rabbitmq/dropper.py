"""Deletion of queues that no client uses."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

from qlm.broker.rabbitmq.connection import NOT_FOUND, RESOURCE_LOCKED, Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Link
from qlm.broker.rabbitmq.registry import locked, read_names
from qlm.broker.rabbitmq.usage import barrier_of, is_used
from qlm.broker.topology import REGISTRY, QueueKind, QueueType
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName

SETTLE_S: Final = 0.1
"""Time for nodes of a RabbitMQ cluster to see each other's bindings."""


class Dropper:
    """Deletes queues over the publishing connection; lives in the event loop of the thread.

    Barriers, checks and deletions are on one connection: if it breaks, all of them end.
    """

    def __init__(self, link: Link, kind: QueueKind, timeout_s: float, rng: random.Random) -> None:
        """Work over a started link; each call is limited to `timeout_s`."""
        self._link = link
        self._kind = kind
        self._timeout_s = timeout_s
        self._rng = rng

    async def drop(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        """Delete those of the queues that are empty and not used; return their names."""
        connection = await self._link.connection(self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s), contextlib.AsyncExitStack() as barriers:
                barred = [
                    queue
                    for queue in queues
                    if await barriers.enter_async_context(_barred(connection, queue))
                ]
                await asyncio.sleep(SETTLE_S if barred else 0)
                gone = [queue for queue in barred if await self._deleted(connection, queue)]
                if gone:
                    async with locked(connection, REGISTRY, self._timeout_s, self._rng):
                        await read_names(connection, without=gone)
                return gone
        except (LinkBrokenError, TimeoutError) as error:
            raise BrokerUnavailableError(f"idle queues were not deleted: {error}") from error

    async def _deleted(self, connection: Connection, queue: QueueName) -> bool:
        if await is_used(connection, queue):
            return False
        channel = await connection.channel()
        try:
            if await channel.depth(queue):
                await channel.close()
                return False
            # A publisher of an earlier version does not say that it uses a queue.
            await channel.delete(queue, if_empty=self._kind.type is QueueType.CLASSIC)
        except LinkBrokenError as error:
            if channel.broken is None or connection.lost.done():
                raise
            return error.code == NOT_FOUND
        await channel.close()
        return True


@contextlib.asynccontextmanager
async def _barred(connection: Connection, queue: QueueName) -> AsyncIterator[bool]:
    """Keep new users from a queue meanwhile; False if another process does."""
    barrier, channel = barrier_of(queue), await connection.channel()
    try:
        await channel.declare(barrier, {}, durable=False, exclusive=True)
    except LinkBrokenError as error:
        if error.code != RESOURCE_LOCKED:
            raise
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(LinkBrokenError):
            await channel.delete(barrier)
            await channel.close()
