"""Simulated broker: class queues and hold queues in memory, first in, first out among what never returned."""

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
    """Ready messages; a returned message takes its former position."""

    __slots__ = ("new", "returned")

    def __init__(self) -> None:
        self.new: deque[_Message] = deque()
        self.returned: list[tuple[int, _Message]] = []

    def __len__(self) -> int:
        return len(self.new) + len(self.returned)

    def pop(self) -> _Message | None:
        if self.returned and (not self.new or self.returned[0][0] < self.new[0].number):
            return heappop(self.returned)[1]
        return self.new.popleft() if self.new else None


class SimulatedBroker:
    """All queues, with the guarantees of `qlm.domain.ports.broker.Broker`.

    Messages are the requests themselves: nothing is encoded. A delivery's tag is the message's number. Calls
    with a delivery return False if it is no longer the instance's.
    """

    def __init__(self) -> None:
        self._queues: dict[QueueName, _Queue] = {}
        self._unacknowledged: dict[InstanceId, dict[int, tuple[QueueName, _Message]]] = {}
        self._numbers = count()

    def publish(self, queue: QueueName, request: Request) -> None:
        """Append a message."""
        self._queue(queue).new.append(_Message(request, next(self._numbers)))

    def get(self, queue: QueueName, limit: int, to: InstanceId) -> list[tuple[Delivery, Request]]:
        """Deliver up to `limit` messages to an instance."""
        taken: list[tuple[Delivery, Request]] = []
        source = self._queues.get(queue)
        if source is None:
            return taken
        unacknowledged = self._unacknowledged.setdefault(to, {})
        while len(taken) < limit and (message := source.pop()) is not None:
            unacknowledged[message.number] = (queue, message)
            delivery = Delivery(queue, message.number, b"", message.redelivered)
            taken.append((delivery, message.request))
        return taken

    def ack(self, delivery: Delivery, by: InstanceId) -> bool:
        """Delete a delivered message."""
        return self._settle(delivery, by) is not None

    def requeue(self, delivery: Delivery, by: InstanceId) -> bool:
        """Return a delivered message to its queue."""
        settled = self._settle(delivery, by)
        if settled is not None:
            self._return(*settled)
        return settled is not None

    def copy(self, delivery: Delivery, by: InstanceId, queue: QueueName) -> None:
        """Publish a delivered message to another queue as well, unless it was returned meanwhile."""
        assert isinstance(delivery.tag, int)
        delivered = self._unacknowledged.get(by, {}).get(delivery.tag)
        if delivered is not None:
            self.publish(queue, delivered[1].request)

    def move(self, delivery: Delivery, by: InstanceId, queue: QueueName) -> bool:
        """Publish a delivered message to another queue, and delete it from its own."""
        settled = self._settle(delivery, by)
        if settled is not None:
            self.publish(queue, settled[1].request)
        return settled is not None

    def disconnect(self, instance: InstanceId) -> None:
        """Return all unacknowledged messages of an instance that died."""
        for queue, message in self._unacknowledged.pop(instance, {}).values():
            self._return(queue, message)

    def empty_hold_queue(self, instance: InstanceId) -> int:
        """Move the messages of an instance's hold queue to their class queues; return their number."""
        moved = 0
        source = self._queue(hold_queue(instance))
        while (message := source.pop()) is not None:
            self.publish(message.request.cls.queue, message.request)
            moved += 1
        return moved

    def depth(self, queue: QueueName) -> int:
        """Return the number of ready messages in a queue."""
        return len(self._queues.get(queue, ()))

    def messages(self) -> int:
        """Return the number of all messages, delivered ones included."""
        return sum(map(len, self._queues.values())) + sum(map(len, self._unacknowledged.values()))

    def _queue(self, name: QueueName) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
        return queue

    def _settle(self, delivery: Delivery, by: InstanceId) -> tuple[QueueName, _Message] | None:
        assert isinstance(delivery.tag, int)
        return self._unacknowledged.get(by, {}).pop(delivery.tag, None)

    def _return(self, queue: QueueName, message: _Message) -> None:
        message.redelivered = True
        heappush(self._queue(queue).returned, (message.number, message))
