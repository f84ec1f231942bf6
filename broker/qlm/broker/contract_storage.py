"""What the checks of the broker contract work with: storages, and small steps on them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from qlm.domain.errors import DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker, Delivery

PATIENCE_S: Final = 10.0
"""How long a check waits for what the port promises without saying when."""


class Storage(Protocol):
    """One durable place for messages, and the processes that use it."""

    def queue(self, label: str = "q") -> QueueName:
        """Return the name of a queue that nobody has used."""
        ...

    async def open(self) -> Broker:
        """Return a broker client as a further process (or another part of the same one) would have it."""
        ...

    async def crash(self, broker: Broker) -> None:
        """Let the process that has this client die without a word; others may die with it."""
        ...


Check = Callable[[Storage], Awaitable[None]]


async def publish(broker: Broker, queue: QueueName, count: int) -> None:
    """Publish the numbers from 0, each as a message."""
    for n in range(count):
        await broker.publish(queue, b"%d" % n)


def body_of(body: bytes) -> bytes:
    """Say of a message what it is, to `peek`."""
    return body


def bodies_of(deliveries: Sequence[Delivery]) -> list[bytes]:
    """Bodies in the order of their deliveries."""
    return [delivery.body for delivery in deliveries]


async def refused(settle: Callable[[Delivery], Awaitable[None]], delivery: Delivery) -> None:
    """Check that a delivery cannot be settled."""
    try:
        await settle(delivery)
    except DeliveryLostError:
        return
    raise AssertionError(f"{delivery} was settled, though it is not held any more")


async def collect(broker: Broker, queue: QueueName, count: int) -> Sequence[Delivery]:
    """Take messages until there are `count`: what others held comes back some time soon."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + PATIENCE_S
    taken = list(await broker.get(queue, count + 1))
    while len(taken) < count:
        assert loop.time() < give_up_s, f"{queue} gave {bodies_of(taken)}; expected {count} messages"
        await asyncio.sleep(0.01)
        taken += await broker.get(queue, count + 1)
    return taken


async def until_depth(broker: Broker, queue: QueueName, depth: int) -> None:
    """Wait until a depth is as expected: a return takes time, and a replicated queue counts late."""
    found = await broker.depth(queue)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + PATIENCE_S
    while found != depth:
        assert loop.time() < give_up_s, f"{queue} has {found} ready messages; expected {depth}"
        await asyncio.sleep(0.01)
        found = await broker.depth(queue)
