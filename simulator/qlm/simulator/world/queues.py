"""The global queue in memory: class queues and hold queues, first in, first out among what never returned."""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from qlm.broker.topology import hold_queue
from qlm.domain.ids import InstanceId, QueueName
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request


@dataclass(slots=True, eq=False)
class _Message:
    request: Request
    number: int
    redelivered: bool = False


class _Queue:
    """Messages in order; what returns goes to where it was."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh: deque[_Message] = deque()
        self.returned: list[tuple[int, _Message]] = []

    def __len__(self) -> int:
        return len(self.fresh) + len(self.returned)

    def pop(self) -> _Message | None:
        if self.returned and (not self.fresh or self.returned[0][0] < self.fresh[0].number):
            return heappop(self.returned)[1]
        return self.fresh.popleft() if self.fresh else None


class GlobalQueue:
    """All queues of the broker; see `qlm.domain.ports.broker.Broker` for what they promise.

    Messages are the requests themselves: nothing is encoded. A delivery's tag is the message's number.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueName, _Queue] = {}
        self._out: dict[InstanceId, dict[int, tuple[QueueName, _Message]]] = {}
        self._numbers = count()

    def publish(self, queue: QueueName, request: Request) -> None:
        """Store a message."""
        self._queue(queue).fresh.append(_Message(request, next(self._numbers)))

    def get(self, queue: QueueName, limit: int, to: InstanceId) -> list[tuple[Delivery, Request]]:
        """Hand out up to `limit` messages."""
        taken: list[tuple[Delivery, Request]] = []
        source = self._queues.get(queue)
        out = self._out.setdefault(to, {})
        while source is not None and len(taken) < limit and (message := source.pop()) is not None:
            out[message.number] = (queue, message)
            delivery = Delivery(queue, message.number, b"", message.redelivered)
            taken.append((delivery, message.request))
        return taken

    def ack(self, delivery: Delivery, by: InstanceId) -> bool:
        """Delete a message; False if it is not the holder's any more."""
        return self._out.get(by, {}).pop(_number(delivery), None) is not None

    def requeue(self, delivery: Delivery, by: InstanceId) -> bool:
        """Put a message back; False if it is not the holder's any more."""
        held = self._out.get(by, {}).pop(_number(delivery), None)
        if held is not None:
            self._put_back(*held)
        return held is not None

    def move(self, delivery: Delivery, by: InstanceId, queue: QueueName) -> bool:
        """Publish a message to another queue and delete it here."""
        held = self._out.get(by, {}).pop(_number(delivery), None)
        if held is not None:
            self.publish(queue, held[1].request)
        return held is not None

    def lose(self, holder: InstanceId) -> None:
        """Take back what was handed out to a holder that died."""
        for queue, message in self._out.pop(holder, {}).values():
            self._put_back(queue, message)

    def empty_hold_queue(self, instance: InstanceId) -> int:
        """Move what lies in an instance's hold queue to the class queues; return how much."""
        moved = 0
        source = self._queue(hold_queue(instance))
        while (message := source.pop()) is not None:
            self.publish(message.request.cls.queue, message.request)
            moved += 1
        return moved

    def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue."""
        return len(self._queues.get(queue, ()))

    def messages(self) -> int:
        """Messages in all, handed out or not."""
        return sum(map(len, self._queues.values())) + sum(map(len, self._out.values()))

    def _queue(self, name: QueueName) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
        return queue

    def _put_back(self, queue: QueueName, message: _Message) -> None:
        message.redelivered = True
        heappush(self._queue(queue).returned, (message.number, message))


def _number(delivery: Delivery) -> int:
    assert isinstance(delivery.tag, int)
    return delivery.tag
