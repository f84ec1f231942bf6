"""Port to the global queue."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from qlm.domain.ids import QueueName
from qlm.domain.values import value

R = TypeVar("R")


@value(kw_only=False)
class Delivery:
    """Message handed out but not yet acknowledged.

    Attributes:
        queue: Queue that the message came from.
        tag: Opaque handle of the implementation.
        body: Content of the message.
        redelivered: True if the message may have been handed out before: check its lease.
    """

    queue: QueueName
    tag: object
    body: bytes
    redelivered: bool


UNHEARD_MAX_S: Final = 15
"""Longest time for which a client that has stopped keeps messages from the others.

RabbitMQ closes a connection after two to three heartbeat intervals without a sign of its client.
"""


class Broker(Protocol):
    """Durable FIFO queues of messages.

    A message is either ready, handed out (to one client), or gone. A message handed out returns, marked
    redelivered, when the connection of its client dies. Order is first in, first out among messages never
    returned. A returned message comes before the messages published after it on one node, and in any order
    on a replicated queue.
    """

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; the queue is declared on first use.

        Returns only when the message is safe (confirmed, or synced to disk).

        Raises:
            BrokerUnavailableError: The message may not be stored.
        """
        ...

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front; fewer, or none, if the queue holds fewer.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    def get_now(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery] | None:
        """Do the same as `get` before returning, where all of it is in memory.

        Returns:
            None if nothing was done: call `get`.
        """
        return None

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` returns for the bodies of up to `limit` messages from the front, in order.

        The messages stay in their places, even if the process dies meanwhile. During the call `get` and
        `depth` may not find them, and afterwards they may be marked redelivered. `peek` and `pick` of
        all processes wait for each other.

        Args:
            look: Called once per message, outside of the caller's thread; its exceptions are raised here.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """Take up to `limit` messages whose body is `wanted`; the others stay, as by `peek`.

        Args:
            wanted: Called as `look` is by `peek`.
            looks_max: Maximum number of messages read, from the front.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here.

        Raises:
            DeliveryLostError: The message was returned or deleted meanwhile.
        """
        ...

    async def requeue(self, delivery: Delivery) -> None:
        """Return a message to its queue; it is marked redelivered from then on.

        Raises:
            DeliveryLostError: The message was returned or deleted meanwhile.
        """
        ...

    async def depth(self, queue: QueueName) -> int:
        """Return the number of ready messages (not those handed out); 0 for a queue never used."""
        ...

    async def queues(self) -> Sequence[QueueName]:
        """Return the names of all queues published to, by any process, and not deleted since."""
        ...

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        """Delete those of the queues that are empty and that no client uses; return their names.

        A client uses a queue while it publishes to it or has messages of it, and for a while after.
        Publishing to a deleted queue makes it anew; no message is lost in between.

        Raises:
            BrokerUnavailableError: The broker cannot be reached; some may be deleted.
        """
        ...

    async def probe(self) -> None:
        """Store a message durably that no client gets and the next probe replaces.

        Raises:
            BrokerUnavailableError: The broker cannot be reached, or stores no messages at present.
        """
        ...

    async def close(self) -> None:
        """Close the connection; messages handed out return to their queues."""
        ...
