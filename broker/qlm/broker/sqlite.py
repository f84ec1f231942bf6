"""The embedded broker: durable queues in one SQLite file."""

import contextlib
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from qlm.broker import sqlite_messages as messages
from qlm.broker.sqlite_file import SqliteFile
from qlm.broker.sqlite_messages import Message
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreCorruptError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery

R = TypeVar("R")


class SqliteQueues:
    """The queues of one file, and who holds which message.

    Ids of ready messages are kept in memory, one heap per queue, so that the oldest comes first and a
    returned message finds its old place; bodies stay on disk until they are handed out.

    Handing out writes nothing. If the process ends without `close`, all messages that were in the file
    are marked redelivered when it is next opened, for any of them may have been handed out.
    """

    def __init__(self, file: SqliteFile, found: messages.Found) -> None:
        """Use `SqliteQueues.open` instead."""
        self.file = file
        self._names = set(found.queues)
        self._ready: defaultdict[QueueName, list[int]] = defaultdict(list)
        for id, queue in found.messages:
            self._ready[queue].append(id)  # ascending, hence a heap already
        newest = found.messages[-1][0] if found.messages else 0
        self._redelivered_below = found.redelivered_below if found.clean else newest + 1
        self._returned = set(found.returned)
        self._ids = itertools.count(max(newest + 1, self._redelivered_below))
        self._holders: set[SqliteBroker] = set()

    @classmethod
    async def open(cls, file: SqliteFile) -> "SqliteQueues":
        """Take up the queues of a file; it has one such object at a time.

        Raises:
            BrokerUnavailableError: The file cannot be read or written.
        """
        queues = cls(file, await file.read(messages.find))
        await queues._note(clean=False)
        return queues

    def broker(self) -> "SqliteBroker":
        """Return a new holder of messages, as a connection of its own to a broker would be."""
        holder = SqliteBroker(self)
        self._holders.add(holder)
        return holder

    async def close(self) -> None:
        """Take back what is handed out and note that the end was a clean one; the file stays open."""
        for holder in tuple(self._holders):
            await holder.close()
        await self._note(clean=True)

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; then it is ready.

        Raises:
            BrokerUnavailableError: It is not known to be stored.
        """
        if queue not in self._names:
            self.file.submit(messages.insert_queues, queue)
            self._names.add(queue)
        message = Message(next(self._ids), queue, body)
        ready = partial(self._make_ready, message.id, queue)
        await self.file.write(messages.insert_messages, message, durable=True, committed=ready)

    def take(self, queue: QueueName, limit: int) -> list[int]:
        """Take the oldest ready messages of a queue out of it; returns their ids."""
        ready = self._ready.get(queue, [])
        return [heapq.heappop(ready) for _ in range(min(limit, len(ready)))]

    def front(self, queue: QueueName, limit: int) -> list[int]:
        """Ids of the oldest ready messages of a queue, which stay there."""
        return heapq.nsmallest(limit, self._ready.get(queue, ()))

    def withdraw(self, queue: QueueName, ids: Collection[int], limit: int) -> list[int]:
        """Take the oldest of these messages out of a queue, as far as they are ready; returns their ids."""
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
        """Delete a message for good, in a commit that follows all writes submitted so far."""
        self.file.submit(messages.delete_messages, id)
        self._returned.discard(id)

    def redelivered(self, id: int) -> bool:
        """Whether a message may have been handed out before."""
        return id < self._redelivered_below or id in self._returned

    def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue."""
        return len(self._ready.get(queue, ()))

    def names(self) -> Sequence[QueueName]:
        """Names of all queues ever published to, in alphabetical order."""
        return sorted(self._names)

    def forget(self, holder: "SqliteBroker") -> None:
        """Let a holder go that has given everything back."""
        self._holders.discard(holder)

    async def _note(self, *, clean: bool) -> None:
        facts: messages.Facts = (("redelivered_below", self._redelivered_below), ("clean", int(clean)))
        await self.file.write(messages.set_facts, facts, durable=True)

    def _make_ready(self, id: int, queue: QueueName) -> None:
        heapq.heappush(self._ready[queue], id)


@dataclass(frozen=True, slots=True, eq=False)
class SqliteTag:
    """One handing out of one message: an identity of its own, which no later one or other client shares."""

    message: int


class SqliteBroker:
    """Implements the port `Broker` on queues in a file; closing it returns what it holds.

    `get` reads bodies in another thread, `publish` waits for a group commit; nothing blocks the event
    loop on the disk. An acknowledgement is deleted lazily: after a kill -9 the message may come back.
    """

    def __init__(self, queues: SqliteQueues) -> None:
        """Use `SqliteQueues.broker` instead."""
        self._queues = queues
        self._held: dict[SqliteTag, QueueName] = {}
        self._open = True

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; the queue is declared on first use.

        Raises:
            BrokerUnavailableError: It is not known to be stored.
        """
        self._check_open()
        await self._queues.publish(queue, body)

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front; fewer, or none, if the queue holds fewer.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
        """
        self._check_open()
        return await self._hand_out(queue, self._queues.take(queue, limit))

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` says of the bodies of up to `limit` messages from the front, which stay.

        Nothing is handed out. `look` is called in the reader's thread; what it raises is raised here.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
        """
        return [said for _, said in await self._look(queue, look, limit)]

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """Take up to `limit` of the first `looks_max` messages whose body is `wanted`; the others stay.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
        """
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
        self._held.update(dict.fromkeys(tags, queue))
        try:
            bodies = await self._queues.file.read(partial(messages.read_bodies, ids=ids))
            self._check_open()  # it may have been closed meanwhile, and all given back
            return [
                Delivery(queue, tag, bodies[tag.message], self._queues.redelivered(tag.message))
                for tag in tags
            ]
        except BaseException as error:
            self._undo_get(queue, tags)
            if isinstance(error, KeyError):
                raise StoreCorruptError(f"{self._queues.file.path} has lost message {error}") from error
            raise

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here; the deletion follows all earlier writes to the file.

        Raises:
            DeliveryLostError: It is not ours any more.
            BrokerUnavailableError: The file is closed.
        """
        id = self._give_up(delivery)
        self._queues.delete(id)

    async def requeue(self, delivery: Delivery) -> None:
        """Give a message back to its place; it is marked redelivered from then on.

        Raises:
            DeliveryLostError: It is not ours any more.
            BrokerUnavailableError: The file is closed.
        """
        id = self._give_up(delivery)
        self._queues.put_back(delivery.queue, (id,), seen=True)

    async def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue (not those handed out); 0 for a queue never used."""
        self._check_open()
        return self._queues.depth(queue)

    async def queues(self) -> Sequence[QueueName]:
        """Names of all queues ever published to, by any process."""
        self._check_open()
        return self._queues.names()

    async def close(self) -> None:
        """Return to its queue what is handed out here; the file stays open for others."""
        if not self._open:
            return
        self._open = False
        self._queues.forget(self)
        held, self._held = self._held, {}
        with contextlib.suppress(BrokerUnavailableError):  # the file is closed: its end was unclean
            for tag, queue in held.items():
                self._queues.put_back(queue, (tag.message,), seen=True)

    def _check_open(self) -> None:
        if not self._open:
            raise BrokerUnavailableError(f"this user of the queue file {self._queues.file.path} is closed")
        self._queues.file.check_open()

    def _undo_get(self, queue: QueueName, tags: Sequence[SqliteTag]) -> None:
        """Give back messages that nobody has seen, unless `close` has done so."""
        ours = [tag.message for tag in tags if self._held.pop(tag, None) is not None]
        self._queues.put_back(queue, ours, seen=False)

    def _give_up(self, delivery: Delivery) -> int:
        """Strike a delivery off what we hold; returns the message's id."""
        tag = delivery.tag
        if not isinstance(tag, SqliteTag) or tag not in self._held:
            raise DeliveryLostError(f"a message of {delivery.queue} is not held here any more: {tag}")
        self._queues.file.check_open()
        del self._held[tag]
        return tag.message
