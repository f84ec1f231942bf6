"""Storages and helper steps of the broker contract."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from qlm.domain.errors import DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker, Delivery

PATIENCE_S: Final = 10.0
"""Time limit for effects that the port promises without a bound."""


class Storage(Protocol):
    """Durable storage of messages, and the processes that use it."""

    def queue(self, label: str = "q") -> QueueName:
        """Return an unused queue name."""
        ...

    async def open(self) -> Broker:
        """Open one more broker client, as another process (or another part of this one) would."""
        ...

    async def crash(self, broker: Broker) -> None:
        """Kill the process of this client without a clean shutdown; other clients may die with it."""
        ...


async def publish(broker: Broker, queue: QueueName, count: int) -> None:
    """Publish the numbers from 0, each as a message."""
    for n in range(count):
        await broker.publish(queue, b"%d" % n)


def body_of(body: bytes) -> bytes:
    """Return the body unchanged, as the `look` of `peek`."""
    return body


def bodies_of(deliveries: Sequence[Delivery]) -> list[bytes]:
    """Return the bodies in the order of their deliveries."""
    return [delivery.body for delivery in deliveries]


async def refused(settle: Callable[[Delivery], Awaitable[None]], delivery: Delivery) -> None:
    """Check that a delivery cannot be settled."""
    try:
        await settle(delivery)
    except DeliveryLostError:
        return
    raise AssertionError(f"{delivery} was settled, though it is not held any more")


async def collect(broker: Broker, queue: QueueName, count: int) -> Sequence[Delivery]:
    """Take messages until there are `count`: those of a closed client return with a delay."""
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
