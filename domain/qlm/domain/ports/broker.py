"""The port to the global queue."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from qlm.domain.ids import QueueName
from qlm.domain.values import value

R = TypeVar("R")


@value(kw_only=False)
class Delivery:
    """A message handed out but not yet acknowledged.

    Attributes:
        queue: Where it came from.
        tag: The implementation's handle; opaque.
        body: The message.
        redelivered: It may have been handed out before: check its lease.
    """

    queue: QueueName
    tag: object
    body: bytes
    redelivered: bool


class Broker(Protocol):
    """Durable FIFO queues of messages.

    A message is either ready, handed out (to one holder), or gone. What is handed out returns, marked
    redelivered, when its holder's connection dies. Order is first in, first out among messages never
    returned; a returned message comes back no later than the messages published after it on one
    node, and in any order on a replicated queue.
    """

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; the queue is declared on first use.

        Returns only when the message is safe (confirmed, or synced to disk).

        Raises:
            BrokerUnavailableError: It is not known to be stored.
        """
        ...

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front; fewer, or none, if the queue holds fewer.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` says of the bodies of up to `limit` messages from the front, in order.

        The messages stay: they are there, in their places, even if the process that looks dies. Meanwhile
        `get` and `depth` may not find them, and afterwards they may be marked redelivered; `peek` and
        `pick` of any process wait for each other.

        Args:
            queue: Where to look.
            look: Called once per message, outside of the caller's thread; what it raises is raised here.
            limit: Messages looked at.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """Take up to `limit` messages whose body is `wanted`; the others stay, as by `peek`.

        Args:
            queue: Where to take them from.
            wanted: Called as `look` is by `peek`.
            limit: Messages taken.
            looks_max: Messages looked at, from the front.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        ...

    async def requeue(self, delivery: Delivery) -> None:
        """Give a message back; it is marked redelivered from then on.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        ...

    async def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue (not those handed out); 0 for a queue never used."""
        ...

    async def queues(self) -> Sequence[QueueName]:
        """Names of all queues ever published to, by any process."""
        ...

    async def close(self) -> None:
        """Let go of the connection; what is handed out returns to its queues."""
        ...
