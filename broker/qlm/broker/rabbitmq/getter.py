"""Consumption of messages from RabbitMQ with basic.get, with acknowledgements and returns."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from qlm.broker.rabbitmq.connection import NOT_FOUND, Channel, Connection, LinkBrokenError
from qlm.broker.rabbitmq.link import Link
from qlm.broker.rabbitmq.registry import Registry, locked
from qlm.broker.rabbitmq.usage import Usage, until_unbarred
from qlm.broker.topology import REGISTRY, QueueKind
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _GetChannel:
    """Channel and its unsettled delivery tags; equal only to itself."""

    number: int
    channel: Channel = field(repr=False)
    unsettled: dict[int, QueueName] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class RabbitTag:
    """Handle of a delivery.

    Attributes:
        source: Its channel; after a reconnect, or in another client, it is another one.
        number: Delivery tag of RabbitMQ, which counts per channel.
    """

    source: _GetChannel
    number: int


@dataclass(frozen=True, slots=True)
class Scan(Generic[R]):
    """Pass over the messages of a queue that keeps some and returns the others.

    Attributes:
        look: Maps a body to a result.
        looks_max: Maximum number of messages read.
        keep: Selects messages by the result.
        keep_max: Maximum number of messages kept.
    """

    look: Callable[[bytes], R]
    looks_max: int
    keep: Callable[[R], bool] = lambda _: False
    keep_max: int = 1

    def goes_on(self, looks: int, kept: int) -> bool:
        """Return True if another message is to be read."""
        return looks < self.looks_max and kept < self.keep_max


class Getter:
    """Receiver of messages over a small pool of channels; lives in the event loop of the thread.

    A channel has one pending basic.get at a time. The pool prefers the channel that was used last, so
    messages of an idle process are on one channel, and those of a busy one are spread.
    """

    def __init__(
        self,
        link: Link,
        kind: QueueKind,
        registry: Registry,
        *,
        channels: int,
        timeout_s: float,
        rng: random.Random,
        forget_s: float,
    ) -> None:
        """Work over a link that is not started yet.

        Args:
            channels: Maximum number of concurrent gets.
            timeout_s: Time limit of a call that waits for a lost connection.
            rng: Source of randomness for the pauses while another process scans a queue.
            forget_s: Time after its last use for which a queue counts as used.
        """
        self._link = link
        self._kind = kind
        self._registry = registry
        self._timeout_s = timeout_s
        self._rng = rng
        self._slots = asyncio.Semaphore(channels)
        self._numbers = itertools.count(1)
        self._idle: list[_GetChannel] = []
        self._channels: set[_GetChannel] = set()
        self._control: Channel | None = None
        self._control_turn = asyncio.Lock()
        self._look_turn = asyncio.Lock()
        self._declared: dict[QueueName, float] = {}
        self._usage = Usage()
        self._ending: set[asyncio.Task[None]] = set()
        self._forget_s = forget_s
        self._sweep()

    async def up(self, connection: Connection) -> None:
        """Use a new connection; channels are opened when needed."""

    def down(self, reason: LinkBrokenError) -> None:
        """Forget all deliveries: the broker gives them out again."""
        self._idle.clear()
        self._channels.clear()
        self._declared.clear()
        self._control = None
        self._usage.down()

    async def get(self, queue: QueueName, limit: int) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front."""

        async def take(connection: Connection) -> Sequence[Delivery]:
            async with self._slots, self._lent(connection) as source:
                return await _take(source, queue, limit)

        return await self._over(queue, take)

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a message handed out here."""
        source, number = self._settle(delivery)
        with _as_lost(delivery):
            source.channel.ack(number)

    async def requeue(self, delivery: Delivery) -> None:
        """Return a message; on return of this call any client can get it."""
        source, number = self._settle(delivery)
        with _as_lost(delivery):
            source.channel.requeue(number)
        # The broker does not confirm a return; an answer about the same queue on the same channel does.
        with contextlib.suppress(LinkBrokenError):
            await source.channel.depth(delivery.queue)

    def return_unclaimed(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages whose receiver was cancelled."""
        for delivery in deliveries:
            with contextlib.suppress(DeliveryLostError, LinkBrokenError):
                source, number = self._settle(delivery)
                source.channel.requeue(number)

    async def depth(self, queue: QueueName) -> int:
        """Count ready messages; 0 if there is no such queue."""

        async def count(connection: Connection) -> int:
            try:
                async with self._controlling(connection) as control:
                    return await control.depth(queue)
            except LinkBrokenError as error:
                if error.code == NOT_FOUND:
                    return 0
                raise

        return await self._link.over(count, self._timeout_s)

    async def names(self) -> Sequence[QueueName]:
        """Read the registry, removing duplicates only."""
        return await self._over(REGISTRY, self._registry.names)

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` returns for each message from the front."""
        results, _ = await self._scan(queue, Scan(look, looks_max=limit))
        return results

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, looks_max: int
    ) -> Sequence[Delivery]:
        """Take the wanted ones of the first messages."""
        _, kept = await self._scan(queue, Scan(wanted, looks_max=looks_max, keep=bool, keep_max=limit))
        return kept

    async def _scan(self, queue: QueueName, scan: Scan[R]) -> tuple[Sequence[R], Sequence[Delivery]]:
        async def take(connection: Connection) -> tuple[Sequence[R], Sequence[Delivery]]:
            lock = locked(connection, queue, self._timeout_s, self._rng)
            async with self._look_turn, lock, self._lent(connection) as source:
                return await _scan(source, queue, scan)

        return await self._over(queue, take)

    async def _over(self, queue: QueueName, work: Callable[[Connection], Awaitable[R]]) -> R:
        """Run work on a queue that is declared, anew if an operator has deleted it meanwhile."""

        async def declared(connection: Connection) -> R:
            with self._usage.kept(queue):
                await self._declare(connection, queue)
                try:
                    return await work(connection)
                except LinkBrokenError as error:
                    if error.code != NOT_FOUND or connection.lost.done():
                        raise
                self._declared.pop(queue, None)
                await self._declare(connection, queue)
                return await work(connection)

        return await self._link.over(declared, self._timeout_s)

    @contextlib.asynccontextmanager
    async def _lent(self, connection: Connection) -> AsyncIterator[_GetChannel]:
        if connection.lost.done():  # while the caller waited for its turn
            raise connection.lost.result()
        source = await self._get_channel(connection)
        try:
            yield source
        finally:
            if source.channel.broken is None:
                self._idle.append(source)

    async def _get_channel(self, connection: Connection) -> _GetChannel:
        while self._idle:
            source = self._idle.pop()
            if source.channel.broken is None:
                return source
            self._channels.discard(source)
        source = _GetChannel(next(self._numbers), await connection.channel())
        self._channels.add(source)
        return source

    def _settle(self, delivery: Delivery) -> tuple[_GetChannel, int]:
        match delivery.tag:
            case RabbitTag(source, number) if source in self._channels and number in source.unsettled:
                if source.channel.broken is None:
                    del source.unsettled[number]
                    return source, number
        raise _lost(delivery)

    @contextlib.asynccontextmanager
    async def _controlling(self, connection: Connection) -> AsyncIterator[Channel]:
        """Lend the channel for queue declarations to one caller at a time, since an error closes it."""
        async with self._control_turn:
            if self._control is None or self._control.broken is not None:
                self._control = await connection.channel()
            yield self._control

    async def _declare(self, connection: Connection, queue: QueueName) -> None:
        """Create a queue unless it exists: a get from a missing one would break the channel for all."""
        now_s = asyncio.get_running_loop().time()
        if queue in self._declared:
            self._declared[queue] = now_s
            return
        try:
            async with self._controlling(connection) as control:
                await self._usage.begin(control, queue)
            await until_unbarred(connection, queue, self._timeout_s)
            async with self._controlling(connection) as control:
                await control.declare(queue, self._kind.arguments())
                if not connection.lost.done():
                    self._declared[queue] = now_s
        except BaseException:
            self._end_later(queue)
            raise

    def _sweep(self) -> None:
        """Forget broken channels, whose messages the broker gives out again, and queues that are not in use.

        Those are queues of which nothing was requested lately and no message is unsettled.
        """
        loop = asyncio.get_running_loop()
        self._channels = {each for each in self._channels if each.channel.broken is None}
        unsettled = {queue for each in self._channels for queue in each.unsettled.values()}
        for queue, used_s in tuple(self._declared.items()):
            unused = queue not in unsettled and not self._usage.keeps(queue)
            if unused and loop.time() - used_s > self._forget_s:
                del self._declared[queue]
                self._end_later(queue)
        loop.call_later(self._forget_s / 4, self._sweep)

    def _end_later(self, queue: QueueName) -> None:
        task = asyncio.get_running_loop().create_task(self._end_use(queue))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_use(self, queue: QueueName) -> None:
        with contextlib.suppress(LinkBrokenError, BrokerUnavailableError):
            connection = await self._link.connection(self._timeout_s)
            async with self._controlling(connection) as control:
                if queue not in self._declared:
                    await self._usage.end(control, queue)


async def _take(source: _GetChannel, queue: QueueName, limit: int) -> Sequence[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < limit and (got := await source.channel.get(queue)):
        source.unsettled[got.tag] = queue
        taken.append(Delivery(queue, RabbitTag(source, got.tag), got.body, got.redelivered))
    return taken


async def _scan(
    source: _GetChannel, queue: QueueName, scan: Scan[R]
) -> tuple[Sequence[R], Sequence[Delivery]]:
    """Read messages, and return all but the kept ones in their order."""
    # All are taken before the first is returned, since it comes back to the front, or (on a replicated queue)
    # to the back.
    tags: list[int] = []
    results: list[R] = []
    kept: dict[int, Delivery] = {}
    try:
        while scan.goes_on(len(results), len(kept)) and (got := await source.channel.get(queue)):
            tags.append(got.tag)
            source.unsettled[got.tag] = queue  # it counts as used, however long this takes
            results.append(scan.look(got.body))
            if scan.keep(results[-1]):
                kept[got.tag] = Delivery(queue, RabbitTag(source, got.tag), got.body, got.redelivered)
    except BaseException:
        kept.clear()
        raise
    finally:
        with contextlib.suppress(LinkBrokenError):
            for tag in tags:
                if tag not in kept:
                    del source.unsettled[tag]
                    source.channel.requeue(tag)
    await source.channel.depth(queue)  # with this answer, they are back
    return results, list(kept.values())


def _lost(delivery: Delivery) -> DeliveryLostError:
    return DeliveryLostError(f"delivery {delivery.tag} of {delivery.queue} is not handed out here any more")


@contextlib.contextmanager
def _as_lost(delivery: Delivery) -> Iterator[None]:
    try:
        yield
    except LinkBrokenError as error:
        raise _lost(delivery) from error
