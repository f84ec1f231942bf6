"""Simulated broker: durable queues; unsettled messages return when their connection breaks."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from qlm.broker import codec
from qlm.domain.errors import UndecodableDataError
from qlm.domain.ids import QueueName
from qlm.domain.request import Request


@dataclass(slots=True)
class Message:
    """A stored message.

    Attributes:
        number: Its position; grows with each publish to any queue.
        request: The decoded body; None if it is no request.
        redelivered: It was delivered before.
    """

    number: int
    body: bytes
    request: Request | None
    redelivered: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    """Block of all publishers, for lack of memory or disk.

    Attributes:
        until_s: Its end.
        late: Returns whether the present message was under way already, and is stored at the end.
    """

    until_s: float
    late: Callable[[], bool]


@dataclass(slots=True)
class _Queue:
    ready: list[tuple[int, Message]] = field(default_factory=list)


class BrokerServer:
    """Queues by name. A message is ready, delivered to one connection, or deleted.

    Attributes:
        repeats: Returns whether the present message is stored twice, as when a publisher repeats it after a
            lost confirm.
        alarm: The last block of publishers, which may be over.
    """

    def __init__(self) -> None:
        self.repeats: Callable[[], bool] = lambda: False
        self.alarm = Alarm(0.0, lambda: False)
        self._queues: dict[QueueName, _Queue] = {}
        self._out: Counter[QueueName] = Counter()
        self._numbers = itertools.count()
        self._connections = itertools.count()

    def connected(self) -> int:
        """Number a new connection; only it can settle its deliveries."""
        return next(self._connections)

    def publish(self, queue: QueueName, body: bytes) -> Message:
        """Store a message."""
        message = self._store(queue, body, _read(body))
        if self.repeats():
            self._store(queue, body, message.request)
        return message

    def take(self, queue: QueueName, limit: int) -> list[Message]:
        """Deliver messages from the front."""
        ready = self._queue(queue).ready
        taken = [heappop(ready)[1] for _ in range(min(limit, len(ready)))]
        self._out[queue] += len(taken)
        return taken

    def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, looks_max: int
    ) -> list[Message]:
        """Deliver the wanted messages among the first `looks_max`."""
        ready = self._queue(queue).ready
        looked = sorted(ready)[:looks_max]
        chosen = [entry for entry in looked if wanted(entry[1].body)][:limit]
        for entry in chosen:
            ready.remove(entry)
        heapify(ready)
        self._out[queue] += len(chosen)
        return [message for _, message in chosen]

    def bodies(self, queue: QueueName, limit: int) -> list[bytes]:
        """Return bodies from the front; the messages stay."""
        return [message.body for _, message in sorted(self._queue(queue).ready)[:limit]]

    def acknowledged(self, queue: QueueName) -> None:
        """Forget a delivered message."""
        self._out[queue] -= 1

    def put_back(self, queue: QueueName, message: Message) -> None:
        """Return a message to its old position."""
        message.redelivered = True
        self._out[queue] -= 1
        heappush(self._queue(queue).ready, (message.number, message))

    def depth(self, queue: QueueName) -> int:
        """Count the ready messages of a queue."""
        known = self._queues.get(queue)
        return 0 if known is None else len(known.ready)

    def names(self) -> Sequence[QueueName]:
        """List all queues."""
        return list(self._queues)

    def delete_empty(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        """Delete those of the queues without a message, ready or delivered; return their names."""
        gone = [
            queue for queue in queues if queue in self._queues and not (self.depth(queue) or self._out[queue])
        ]
        for queue in gone:
            del self._queues[queue]
        return gone

    def _queue(self, name: QueueName) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    def _store(self, queue: QueueName, body: bytes, request: Request | None) -> Message:
        message = Message(next(self._numbers), body, request)
        heappush(self._queue(queue).ready, (message.number, message))
        return message


def _read(body: bytes) -> Request | None:
    try:
        return codec.decode_request(body)
    except UndecodableDataError:
        return None
