"""Embedded broker: durable queues in one SQLite file."""

import asyncio
import contextlib
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from qlm.broker.sqlite import messages
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.fresh_bodies import FreshBodies
from qlm.broker.sqlite.messages import Message
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, UndecodableDataError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker, Delivery

R = TypeVar("R")


class SqliteQueues:
    """Queues of one file, and the clients that hold messages.

    Ids of ready messages are in memory, one heap per queue, so that the oldest comes first and a returned
    message gets its old place; bodies are on disk, and new ones in memory until they are handed out.

    Handing out writes nothing. If the process ends without `close`, all messages of the file are marked
    redelivered when it is next opened, since any of them may have been handed out.
    """

    def __init__(self, file: SqliteFile, found: messages.Found) -> None:
        """Use `SqliteQueues.open` instead."""
        self.file = file
        self._names = {*found.queues, *(queue for _, queue in found.messages)}
        self._ready: defaultdict[QueueName, list[int]] = defaultdict(list)
        for id, queue in found.messages:
            self._ready[queue].append(id)  # ascending, hence a heap already
        newest = found.messages[-1][0] if found.messages else 0
        self._redelivered_below = found.redelivered_below if found.clean else newest + 1
        self._returned = set(found.returned)
        self._ids = itertools.count(max(newest + 1, self._redelivered_below))
        self._clients: set[SqliteBroker] = set()
        self._publishing: Counter[QueueName] = Counter()
        self._fresh = FreshBodies()

    @classmethod
    async def open(cls, file: SqliteFile) -> "SqliteQueues":
        """Open the queues of a file; it has one such object at a time.

        Raises:
            BrokerUnavailableError: The file cannot be read or written.
            UndecodableDataError: It is damaged.
        """
        queues = cls(file, await asyncio.to_thread(file.read_now, messages.find))
        await queues._record(clean=False)
        return queues

    def broker(self) -> "SqliteBroker":
        """Return a new client, like a new connection to a broker."""
        client = SqliteBroker(self)
        self._clients.add(client)
        return client

    async def close(self) -> None:
        """Take back all messages and record a clean end; the file stays open."""
        for client in tuple(self._clients):
            await client.close()
        await self._record(clean=True)

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; then it is ready.

        Raises:
            BrokerUnavailableError: The message may not be stored.
        """
        self.file.check_open()
        if queue not in self._names:
            self.file.submit(messages.list_queues, (queue, True))
            self._names.add(queue)
        message = Message(next(self._ids), queue, body)
        self._publishing[queue] += 1
        settled = partial(self._published, message)
        await self.file.write(messages.insert_messages, message, durable=True, settled=settled)

    async def bodies(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Return the bodies of these messages; those that only the disk has are read in another thread."""
        found = self._fresh.take(ids)
        if len(found) < len(ids):
            others = [id for id in ids if id not in found]
            found |= await self.file.read(partial(messages.read_bodies, ids=others))
        return found

    def fresh_bodies(self, ids: Sequence[int]) -> dict[int, bytes] | None:
        """Return the bodies of these messages; None if only the disk has some of them."""
        return self._fresh.take(ids) if self._fresh.has(ids) else None

    def take(self, queue: QueueName, limit: int) -> list[int]:
        """Remove the oldest ready messages from a queue; return their ids."""
        ready = self._ready.get(queue, [])
        return [heapq.heappop(ready) for _ in range(min(limit, len(ready)))]

    def front(self, queue: QueueName, limit: int) -> list[int]:
        """Return the ids of the oldest ready messages of a queue, which stay there."""
        return heapq.nsmallest(limit, self._ready.get(queue, ()))

    def withdraw(self, queue: QueueName, ids: Collection[int], limit: int) -> list[int]:
        """Remove the oldest of these messages that are ready from a queue; return their ids."""
        ready = self._ready.get(queue, [])
        taken = heapq.nsmallest(limit, (id for id in ready if id in ids))
        gone = set(taken)
        ready[:] = [id for id in ready if id not in gone]
        heapq.heapify(ready)
        return taken

    def put_back(self, queue: QueueName, ids: Iterable[int], *, seen: bool) -> None:
        """Make messages ready again in their old places; `seen` marks them redelivered from now on."""
        ids = tuple(ids)
        for id in ids:
            heapq.heappush(self._ready[queue], id)
            if seen and not self.redelivered(id):
                self._returned.add(id)
                self.file.submit(messages.mark_returned, id)

    def delete(self, id: int) -> None:
        """Delete a message permanently, in a commit after all writes submitted so far."""
        self.file.submit(messages.delete_messages, id)
        self._returned.discard(id)

    def redelivered(self, id: int) -> bool:
        """Return True if a message may have been handed out before."""
        return id < self._redelivered_below or id in self._returned

    def depth(self, queue: QueueName) -> int:
        """Return the number of ready messages of a queue."""
        return len(self._ready.get(queue, ()))

    def names(self) -> Sequence[QueueName]:
        """Return the names of all queues, in alphabetical order."""
        return sorted(self._names)

    def delete_unused(self, queues: Iterable[QueueName]) -> Sequence[QueueName]:
        """Delete those of the queues without messages, ready, handed out or under way; return their names."""
        used = {queue for client in self._clients for queue in client.unsettled()}
        gone = [
            queue
            for queue in queues
            if queue in self._names and not (self.depth(queue) or self._publishing[queue] or queue in used)
        ]
        for queue in gone:
            self.file.submit(messages.list_queues, (queue, False))
            self._names.discard(queue)
            self._ready.pop(queue, None)
            del self._publishing[queue]
        return gone

    def forget(self, client: "SqliteBroker") -> None:
        """Forget a client that has returned all its messages."""
        self._clients.discard(client)

    async def _record(self, *, clean: bool) -> None:
        facts: messages.Facts = (
            ("redelivered_below", self._redelivered_below),
            ("clean", int(clean)),
            ("checksums", self.file.mark),  # last: `clean` makes it void
        )
        await self.file.write(messages.set_facts, facts, durable=True)

    def _published(self, message: Message, error: Exception | None) -> None:
        self._publishing[message.queue] -= 1
        if error is not None:
            return
        self._fresh.add(message.id, message.body)
        heapq.heappush(self._ready[message.queue], message.id)


@dataclass(frozen=True, slots=True, eq=False)
class SqliteTag:
    """Handle of one delivery, equal only to itself: a later delivery of the message has another one."""

    message: int


class SqliteBroker(Broker):
    """Broker client on queues in a file; `close` returns its messages, and the file stays open for others.

    `get` reads bodies that are not in memory in another thread, `publish` waits for a group commit: the disk
    never blocks the event loop. An acknowledged message is deleted lazily: after a kill -9 it may come back.
    """

    def __init__(self, queues: SqliteQueues) -> None:
        """Use `SqliteQueues.broker` instead."""
        self._queues = queues
        self._deliveries: dict[SqliteTag, QueueName] = {}
        self._open = True

    async def publish(self, queue: QueueName, body: bytes) -> None:
        self._check_open()
        await self._queues.publish(queue, body)

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        self._check_open()
        return await self._hand_out(queue, self._queues.take(queue, limit))

    def get_now(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery] | None:
        self._check_open()
        ids = self._queues.take(queue, limit)
        bodies = self._queues.fresh_bodies(ids)
        if bodies is None:
            self._queues.put_back(queue, ids, seen=False)
            return None
        tags = [SqliteTag(id) for id in ids]
        self._deliveries.update(dict.fromkeys(tags, queue))
        return self._delivered(queue, tags, bodies)

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        return [answer for _, answer in await self._look(queue, look, limit)]

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        found = await self._look(queue, wanted, looks_max)
        self._check_open()
        chosen = {id for id, is_wanted in found if is_wanted}
        return await self._hand_out(queue, self._queues.withdraw(queue, chosen, limit))

    async def _look(
        self, queue: QueueName, look: Callable[[bytes], R], limit: int
    ) -> Sequence[tuple[int, R]]:
        self._check_open()
        ids = self._queues.front(queue, limit)
        return await self._queues.file.read(partial(messages.look_at_bodies, ids=ids, look=look))

    async def _hand_out(self, queue: QueueName, ids: Sequence[int]) -> Sequence[Delivery]:
        if not ids:
            return ()
        tags = [SqliteTag(id) for id in ids]
        self._deliveries.update(dict.fromkeys(tags, queue))
        try:
            bodies = await self._queues.bodies(ids)
            self._check_open()  # it may have been closed meanwhile, and all messages returned
            return self._delivered(queue, tags, bodies)
        except BaseException as error:
            self._undo_get(queue, tags)
            if isinstance(error, KeyError):
                raise UndecodableDataError(f"{self._queues.file.path} has lost message {error}") from error
            raise

    def _delivered(
        self, queue: QueueName, tags: Sequence[SqliteTag], bodies: Mapping[int, bytes]
    ) -> Sequence[Delivery]:
        redelivered = self._queues.redelivered
        return [Delivery(queue, tag, bodies[tag.message], redelivered(tag.message)) for tag in tags]

    async def ack(self, delivery: Delivery) -> None:
        id = self._settle(delivery)
        self._queues.delete(id)

    async def requeue(self, delivery: Delivery) -> None:
        id = self._settle(delivery)
        self._queues.put_back(delivery.queue, (id,), seen=True)

    async def depth(self, queue: QueueName) -> int:
        self._check_open()
        return self._queues.depth(queue)

    async def queues(self) -> Sequence[QueueName]:
        self._check_open()
        return self._queues.names()

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        self._check_open()
        return self._queues.delete_unused(queues)

    async def probe(self) -> None:
        self._check_open()
        await self._queues.file.write(messages.mark_probe, None, durable=True)

    def unsettled(self) -> Collection[QueueName]:
        """Return the queues of the messages handed out here."""
        return self._deliveries.values()

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._queues.forget(self)
        deliveries, self._deliveries = self._deliveries, {}
        with contextlib.suppress(BrokerUnavailableError):  # the file is closed: its end was unclean
            for tag, queue in deliveries.items():
                self._queues.put_back(queue, (tag.message,), seen=True)

    def _check_open(self) -> None:
        if not self._open:
            raise BrokerUnavailableError(f"this client of the queue file {self._queues.file.path} is closed")
        self._queues.file.check_open()

    def _undo_get(self, queue: QueueName, tags: Sequence[SqliteTag]) -> None:
        """Return messages whose bodies were not handed out, unless `close` has returned them."""
        ours = [tag.message for tag in tags if self._deliveries.pop(tag, None) is not None]
        self._queues.put_back(queue, ours, seen=False)

    def _settle(self, delivery: Delivery) -> int:
        """Forget a delivery; return the id of its message."""
        tag = delivery.tag
        if not isinstance(tag, SqliteTag) or tag not in self._deliveries:
            raise DeliveryLostError(f"a message of {delivery.queue} is not handed out here any more: {tag}")
        self._queues.file.check_open()
        del self._deliveries[tag]
        return tag.message
