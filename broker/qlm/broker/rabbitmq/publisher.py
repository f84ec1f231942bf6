"""Publishing to RabbitMQ: durable, mandatory, confirmed, with many messages in flight."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from qlm.broker.rabbitmq.connection import Channel, Connection, LinkBrokenError, PublishEvents
from qlm.broker.rabbitmq.usage import Usage, until_unbarred
from qlm.broker.topology import PROBE, REGISTRY, QueueKind
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName

UNLISTED: Final = frozenset({REGISTRY, PROBE})
"""Queues that are not in the registry, and that no client deletes."""

Settled = Callable[[BrokerUnavailableError | None], None]


@dataclass(slots=True)
class Publication:
    """Message in flight.

    Attributes:
        queue: Destination.
        body: Content.
        settled: Called once, with None when the broker has confirmed the message.
        expires_s: Deadline, in the time of the thread's loop.
        returned: Reason of the broker if it could not route the message, else empty.
    """

    queue: QueueName
    body: bytes
    settled: Settled
    expires_s: float
    returned: str = ""


class Publisher:
    """Sender of publications, in order per queue; lives in the event loop of the thread.

    A publication waits while the connection is lost, while the broker has blocked publishers (low memory or
    disk), and until its queue is declared and registered. It fails when it expires, or when the connection is
    lost before its confirm. A message rejected with a nack is sent again until it expires.
    """

    def __init__(self, kind: QueueKind, timeout_s: float, forget_s: float) -> None:
        """Prepare; `up` and `down` follow the state of the connection.

        Args:
            kind: Declaration of queues.
            timeout_s: Time limit of a publication.
            forget_s: Time after its last publication for which a queue counts as used.
        """
        self._forget_s = forget_s
        self._usage = Usage()
        self._used_s: dict[QueueName, float] = {}
        self._kind = kind
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._channel: Channel | None = None
        self._control: Channel | None = None
        self._control_turn = asyncio.Lock()
        self._declared: set[QueueName] = set()
        self._registered: set[QueueName] = {*UNLISTED}
        self._ready: set[QueueName] = set()
        self._waiting: dict[QueueName, deque[Publication]] = {}
        self._preparing: dict[QueueName, asyncio.Task[None]] = {}
        self._sent: dict[int, Publication] = {}
        self._probe: asyncio.Future[None] | None = None
        self._probe_until_s = 0.0
        self._ending: set[asyncio.Task[None]] = set()
        self._sweep()

    async def up(self, connection: Connection) -> None:
        """Use a new connection."""
        channel = await connection.channel()
        self._sent = {}
        await channel.confirm(PublishEvents(confirmed=self._confirmed, returned=self._returned))
        connection.on_blocked, connection.on_unblocked = self._fail_probe, self._send_waiting
        # A channel closed by an error of one message (too large, forbidden) closes the connection also: the
        # link reconnects, and all messages in flight have failed.
        channel.on_broken = connection.drop
        self._connection, self._channel = connection, channel
        self._send_waiting()

    def down(self, reason: LinkBrokenError) -> None:
        """Fail messages sent and not confirmed; those not sent yet continue to wait."""
        if self._channel is not None and self._channel.broken is not None:
            reason = self._channel.broken  # the cause of the lost connection
        self._connection = self._channel = self._control = None
        self._declared.clear()
        self._ready.clear()
        self._registered = {*UNLISTED}  # another process may delete its queues now, and their names
        self._usage.down()
        sent, self._sent = self._sent, {}
        for publication in sent.values():
            publication.settled(BrokerUnavailableError(f"connection lost before the confirm: {reason}"))

    def put(self, queue: QueueName, body: bytes, settled: Settled) -> None:
        """Publish a message."""
        publication = Publication(queue, body, settled, self._loop.time() + self._timeout_s)
        if queue in self._ready and queue not in self._waiting and not self._is_blocked():
            self._send(publication)
        else:
            self._waiting.setdefault(queue, deque()).append(publication)
            self._send_waiting()

    async def probe(self) -> None:
        """Store a message, or wait for the one of a probe under way.

        Raises:
            BrokerUnavailableError: It may not be stored; at once while RabbitMQ has blocked publishers, which
                it says to those only that publish.
        """
        if self._connection is not None and self._connection.blocked is not None:
            raise BrokerUnavailableError(_blocked(self._connection.blocked))
        # One that a defect left unsettled is not waited for again.
        if self._probe is None or self._probe.done() or self._loop.time() > self._probe_until_s:
            self._probe, self._probe_until_s = self._loop.create_future(), self._loop.time() + self._timeout_s
            self.put(PROBE, b"", partial(settle, self._probe))
        await asyncio.shield(self._probe)

    def _fail_probe(self, why: str) -> None:
        if self._probe is not None:
            settle(self._probe, BrokerUnavailableError(_blocked(why)))

    def close(self) -> None:
        """Fail all messages not confirmed."""
        for task in self._preparing.values():
            task.cancel()
        left = [*self._sent.values(), *(p for waiting in self._waiting.values() for p in waiting)]
        self._sent, self._waiting = {}, {}
        for publication in left:
            publication.settled(BrokerUnavailableError("closed before the confirm"))

    def _is_blocked(self) -> bool:
        connection = self._connection
        return connection is None or connection.lost.done() or connection.blocked is not None

    def _send(self, publication: Publication) -> None:
        assert self._channel is not None, "nothing is sent without a channel"
        try:
            number = self._channel.publish(publication.queue, publication.body)
        except LinkBrokenError as error:
            publication.settled(BrokerUnavailableError(f"not sent: {error}"))
        else:
            self._sent[number] = publication
            self._used_s[publication.queue] = self._loop.time()

    def _send_waiting(self) -> None:
        """Send messages that wait for ready queues, and prepare the other queues."""
        if self._is_blocked():
            return
        for queue in tuple(self._waiting):
            if queue in self._ready:
                for publication in self._waiting.pop(queue):
                    self._send(publication)
            elif queue not in self._preparing:
                task = self._loop.create_task(self._prepare(queue))
                self._preparing[queue] = task
                task.add_done_callback(partial(self._prepared, queue))

    def _prepared(self, queue: QueueName, _: asyncio.Task[None]) -> None:
        del self._preparing[queue]
        self._send_waiting()

    async def _prepare(self, queue: QueueName) -> None:
        """Declare a queue and register its name."""
        connection = self._connection
        try:
            await self._declare(queue)
            if queue not in self._registered:
                await self._register(queue)
                self._registered.add(queue)
            if connection is self._connection:
                self._ready.add(queue)
        except BrokerUnavailableError as error:
            self._fail_waiting(queue, error)
        except LinkBrokenError as error:
            if connection is not None and not connection.lost.done():  # this queue cannot be declared
                self._fail_waiting(queue, error)

    def _fail_waiting(self, queue: QueueName, error: Exception) -> None:
        for publication in self._waiting.pop(queue, ()):
            publication.settled(BrokerUnavailableError(f"queue {queue} cannot be used: {error}"))

    async def _declare(self, queue: QueueName) -> None:
        connection = self._connection
        if connection is None or queue in self._declared:
            return
        with self._usage.kept(queue):
            if queue not in UNLISTED:
                async with self._controlling(connection) as control:
                    await self._usage.begin(control, queue)
                self._used_s[queue] = self._loop.time()
                await until_unbarred(connection, queue, self._timeout_s)
            async with self._controlling(connection) as control:
                await control.declare(queue, self._kind.arguments_of(queue))
                if connection is self._connection:
                    self._declared.add(queue)

    @contextlib.asynccontextmanager
    async def _controlling(self, connection: Connection) -> AsyncIterator[Channel]:
        """Lend the channel for declarations to one caller at a time: a refused one closes it."""
        async with self._control_turn:
            if connection is not self._connection:
                raise LinkBrokenError("the connection was lost")
            if self._control is None or self._control.broken is not None:
                self._control = await connection.channel()
            yield self._control

    async def _register(self, queue: QueueName) -> None:
        stored: asyncio.Future[None] = self._loop.create_future()

        self.put(REGISTRY, queue.encode(), partial(settle, stored))
        await stored

    def _confirmed(self, number: int, multiple: bool, ok: bool) -> None:
        # Numbers ascend, so those that a confirm of several covers are in front.
        for each in tuple(takewhile(number.__ge__, self._sent)) if multiple else (number,):
            publication = self._sent.pop(each, None)
            if publication is None:
                continue
            if publication.returned:
                gone = f"queue {publication.queue} is gone: {publication.returned}"
                publication.settled(BrokerUnavailableError(gone))
            elif ok:
                publication.settled(None)
            else:  # not stored: a replicated queue without a leader, say; `_sweep` sends it again
                self._waiting.setdefault(publication.queue, deque()).append(publication)

    def _returned(self, number: int, reason: str) -> None:
        if publication := self._sent.get(number):
            publication.returned = reason
            self._declared.discard(publication.queue)
            self._ready.discard(publication.queue)

    def _sweep(self) -> None:
        """Fail expired messages, and send nacked ones again."""
        now_s = self._loop.time()
        for queue, waiting in tuple(self._waiting.items()):
            while waiting and waiting[0].expires_s <= now_s:
                waiting.popleft().settled(BrokerUnavailableError(self._timeout_reason()))
            if not waiting:
                del self._waiting[queue]
        for number, publication in tuple(self._sent.items()):
            if publication.expires_s <= now_s:
                del self._sent[number]
                publication.settled(BrokerUnavailableError(self._timeout_reason()))
        self._forget_unused(now_s)
        self._send_waiting()
        self._loop.call_later(min(0.25, self._timeout_s / 10), self._sweep)

    def _forget_unused(self, now_s: float) -> None:
        """Cease to use queues to which nothing was published lately."""
        idle = {queue for queue, used_s in self._used_s.items() if now_s - used_s > self._forget_s}
        if idle:
            idle -= self._waiting.keys() | self._preparing.keys()
            idle -= {publication.queue for publication in self._sent.values()}
        for queue in idle - UNLISTED:
            del self._used_s[queue]
            for known in (self._declared, self._registered, self._ready):
                known.discard(queue)
            task = self._loop.create_task(self._end_use(queue))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_use(self, queue: QueueName) -> None:
        async with self._control_turn:
            control = self._control
            if control is not None and control.broken is None and queue not in self._declared:
                with contextlib.suppress(LinkBrokenError):
                    await self._usage.end(control, queue)

    def _timeout_reason(self) -> str:
        within = f"within {self._timeout_s:g} s"
        if self._connection is None:
            return f"not sent {within}: RabbitMQ is away"
        if self._connection.blocked is not None:
            return f"not confirmed {within}: {_blocked(self._connection.blocked)}"
        return f"not confirmed {within}"


def settle(stored: asyncio.Future[None], error: BrokerUnavailableError | None) -> None:
    """Tell the future of a message how that ended, unless it knows."""
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _blocked(why: str) -> str:
    return f"RabbitMQ has blocked publishers ({why})"
