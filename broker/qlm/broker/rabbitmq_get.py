"""Taking messages from RabbitMQ with basic.get, and giving them back or acknowledging them."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from qlm.broker.amqp import NOT_FOUND, RESOURCE_LOCKED, Channel, Connection, LinkBrokenError
from qlm.broker.rabbitmq_link import Backoff, Link
from qlm.broker.topology import REGISTRY, QueueKind, lock_of
from qlm.domain.errors import DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _GetChannel:
    """A channel and the delivery tags it has handed out; each is an identity of its own."""

    number: int
    channel: Channel = field(repr=False)
    held: set[int] = field(default_factory=set, repr=False)


@dataclass(frozen=True, slots=True)
class RabbitTag:
    """Which channel handed a message out, and as which delivery.

    Attributes:
        source: The channel itself: a successor, after a reconnect or in another client, is another one.
        number: RabbitMQ's delivery tag, which counts per channel.
    """

    source: _GetChannel
    number: int


@dataclass(frozen=True, slots=True)
class Sieve(Generic[R]):
    """How messages are looked at, and which of them are kept.

    Attributes:
        look: Says something of a body.
        looks_max: Messages looked at.
        keep: Whether a message of which `look` said that is kept.
        keep_max: Messages kept.
    """

    look: Callable[[bytes], R]
    looks_max: int
    keep: Callable[[R], bool] = lambda _: False
    keep_max: int = 1

    def goes_on(self, looks: int, kept: int) -> bool:
        """Whether, after so many, there is to be another look."""
        return looks < self.looks_max and kept < self.keep_max


class Getter:
    """Hands out messages over a small pool of channels; lives in the thread's event loop.

    A channel has one basic.get on its way at a time. The pool uses the channel that was given back last,
    so messages of a calm process sit on one channel and a busy one spreads them.
    """

    def __init__(
        self, link: Link, kind: QueueKind, *, channels: int, timeout_s: float, rng: random.Random
    ) -> None:
        """Work over a link that has yet to be started.

        Args:
            link: Where connections come from.
            kind: How queues are declared.
            channels: Gets on their way at once.
            timeout_s: How long a call waits for a connection that is away.
            rng: Chance for the pauses while another process looks at all of a queue.
        """
        self._link = link
        self._kind = kind
        self._timeout_s = timeout_s
        self._rng = rng
        self._slots = asyncio.Semaphore(channels)
        self._numbers = itertools.count(1)
        self._idle: list[_GetChannel] = []
        self._channels: set[_GetChannel] = set()
        self._control: Channel | None = None
        self._control_turn = asyncio.Lock()
        self._look_turn = asyncio.Lock()
        self._declared: set[QueueName] = set()

    async def up(self, connection: Connection) -> None:
        """Use a new connection; channels are opened when needed."""

    def down(self, reason: LinkBrokenError) -> None:
        """Forget all deliveries: the broker gives them out again."""
        self._idle.clear()
        self._channels.clear()
        self._declared.clear()
        self._control = None

    async def get(self, queue: QueueName, limit: int) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front."""

        async def take(connection: Connection) -> Sequence[Delivery]:
            await self._declare(connection, queue)
            source = await self._get_channel(connection)
            try:
                return await _take(source, queue, limit)
            finally:
                if source.channel.broken is None:
                    self._idle.append(source)

        async with self._slots:
            return await self._link.over(take, self._timeout_s)

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge a message handed out here."""
        source, number = self._strike_off(delivery)
        with _as_lost(delivery):
            source.channel.ack(number)

    async def requeue(self, delivery: Delivery) -> None:
        """Return a message; once done, any getter may get it."""
        source, number = self._strike_off(delivery)
        with _as_lost(delivery):
            source.channel.requeue(number)
        # The broker does not confirm a return; an answer about the same queue on the same channel does.
        with contextlib.suppress(LinkBrokenError):
            await source.channel.depth(delivery.queue)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages that their receiver was not there to take."""
        for delivery in deliveries:
            with contextlib.suppress(DeliveryLostError, LinkBrokenError):
                source, number = self._strike_off(delivery)
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
        """Read the registry without taking anything out but duplicates."""

        async def read(connection: Connection) -> Sequence[QueueName]:
            await self._declare(connection, REGISTRY)
            async with self._alone(connection, REGISTRY):
                channel = await connection.channel()
                try:
                    return sorted(await _read_names(channel))
                finally:
                    await channel.close()  # puts the names back

        async with self._look_turn:
            return await self._link.over(read, self._timeout_s)

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Say of each message from the front what `look` says of its body."""
        said, _ = await self._sift(queue, Sieve(look, looks_max=limit))
        return said

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, looks_max: int
    ) -> Sequence[Delivery]:
        """Take wanted ones of the first messages."""
        _, kept = await self._sift(queue, Sieve(wanted, looks_max=looks_max, keep=bool, keep_max=limit))
        return kept

    async def _sift(self, queue: QueueName, sieve: Sieve[R]) -> tuple[Sequence[R], Sequence[Delivery]]:
        async def take(connection: Connection) -> tuple[Sequence[R], Sequence[Delivery]]:
            await self._declare(connection, queue)
            async with self._alone(connection, queue):
                source = await self._get_channel(connection)
                try:
                    return await _sift(source, queue, sieve)
                finally:
                    if source.channel.broken is None:
                        self._idle.append(source)

        async with self._look_turn:
            return await self._link.over(take, self._timeout_s)

    async def _get_channel(self, connection: Connection) -> _GetChannel:
        while self._idle:
            source = self._idle.pop()
            if source.channel.broken is None:
                return source
            self._channels.discard(source)
        source = _GetChannel(next(self._numbers), await connection.channel())
        self._channels.add(source)
        return source

    def _strike_off(self, delivery: Delivery) -> tuple[_GetChannel, int]:
        match delivery.tag:
            case RabbitTag(source, number) if source in self._channels and number in source.held:
                if source.channel.broken is None:
                    source.held.discard(number)
                    return source, number
        raise _lost(delivery)

    @contextlib.asynccontextmanager
    async def _controlling(self, connection: Connection) -> AsyncIterator[Channel]:
        """Give the channel for questions about queues to one caller at a time: a refusal closes it."""
        async with self._control_turn:
            if self._control is None or self._control.broken is not None:
                self._control = await connection.channel()
            yield self._control

    async def _declare(self, connection: Connection, queue: QueueName) -> None:
        """Make sure that a queue exists: a get from a missing one would break the channel of others."""
        if queue in self._declared:
            return
        async with self._controlling(connection) as control:
            await control.declare(queue, self._kind.arguments())
        if not connection.lost.done():
            self._declared.add(queue)

    @contextlib.asynccontextmanager
    async def _alone(self, connection: Connection, queue: QueueName) -> AsyncIterator[None]:
        """Be the only one in the cluster who looks at all of a queue; the lock ends with our connection."""
        lock = lock_of(queue)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._timeout_s
        for pause_s in Backoff(first_s=0.01, max_s=0.2).pauses_s(self._rng):
            channel = await connection.channel()
            try:
                await channel.declare(lock, {}, durable=False, exclusive=True)
                break
            except LinkBrokenError as error:
                if error.code != RESOURCE_LOCKED or loop.time() > give_up_s:
                    raise
            await asyncio.sleep(pause_s)
        try:
            yield
        finally:
            with contextlib.suppress(LinkBrokenError):
                await channel.delete(lock)
                await channel.close()


async def _take(source: _GetChannel, queue: QueueName, limit: int) -> Sequence[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < limit and (got := await source.channel.get(queue)):
        source.held.add(got.tag)
        taken.append(Delivery(queue, RabbitTag(source, got.tag), got.body, got.redelivered))
    return taken


async def _sift(
    source: _GetChannel, queue: QueueName, sieve: Sieve[R]
) -> tuple[Sequence[R], Sequence[Delivery]]:
    """Look at messages, and return all but those to keep in the order in which they were.

    All are held before the first is returned, since it comes back to the front, or (on a replicated queue)
    to the back.
    """
    tags: list[int] = []
    said: list[R] = []
    kept: dict[int, Delivery] = {}
    try:
        while sieve.goes_on(len(said), len(kept)) and (got := await source.channel.get(queue)):
            tags.append(got.tag)
            said.append(sieve.look(got.body))
            if sieve.keep(said[-1]):
                kept[got.tag] = Delivery(queue, RabbitTag(source, got.tag), got.body, got.redelivered)
    except BaseException:
        kept.clear()
        raise
    finally:
        with contextlib.suppress(LinkBrokenError):
            for tag in tags:
                if tag not in kept:
                    source.channel.requeue(tag)
    source.held.update(kept)
    await source.channel.depth(queue)  # once this is answered, they are back
    return said, list(kept.values())


async def _read_names(channel: Channel) -> set[QueueName]:
    names: set[QueueName] = set()
    while got := await channel.get(REGISTRY):
        name = QueueName(got.body.decode())
        if name in names:
            channel.ack(got.tag)
        names.add(name)
    return names


def _lost(delivery: Delivery) -> DeliveryLostError:
    return DeliveryLostError(f"delivery {delivery.tag} of {delivery.queue} is not ours any more")


@contextlib.contextmanager
def _as_lost(delivery: Delivery) -> Iterator[None]:
    try:
        yield
    except LinkBrokenError as error:
        raise _lost(delivery) from error
