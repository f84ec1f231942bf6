"""The production broker: RabbitMQ through pika, in a thread of its own."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import pika

from qlm.broker.amqp import LinkBrokenError
from qlm.broker.bridge import Bridge
from qlm.broker.rabbitmq_get import Getter
from qlm.broker.rabbitmq_link import Backoff, Link
from qlm.broker.rabbitmq_publish import Publisher
from qlm.broker.threads import share_interpreter
from qlm.broker.topology import QueueKind
from qlm.domain.errors import BrokerUnavailableError, InvalidValueError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """How to reach RabbitMQ.

    Attributes:
        url: `amqp://user:password@host:port/vhost`, or amqps.
        kind: How queues are declared.
        connect_timeout_s: For one attempt to connect.
        confirm_timeout_s: For a publish, and for any call to wait for a connection that is away.
        heartbeat_s: Silence after which either side gives the connection up is twice this.
        get_channels: Gets on their way at once.
        backoff: Pauses between attempts to reconnect.
    """

    url: str = field(repr=False)
    kind: QueueKind = field(default_factory=QueueKind)
    connect_timeout_s: float = 5.0
    confirm_timeout_s: float = 10.0
    heartbeat_s: int = 15
    get_channels: int = 4
    backoff: Backoff = field(default_factory=Backoff)

    def parameters(self) -> pika.connection.Parameters:
        """Write them as pika wants them.

        Raises:
            InvalidValueError: The URL cannot be read.
        """
        expected = "amqp://user:password@host:port/vhost"
        try:
            parts = urlsplit(self.url)
            parameters = pika.URLParameters(self.url)
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidValueError("broker", "(not shown)", expected) from error
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise InvalidValueError("broker", f"{parts.scheme}://{parts.hostname or ''}", expected)
        parameters.heartbeat = self.heartbeat_s
        parameters.connection_attempts = 1
        parameters.socket_timeout = self.connect_timeout_s
        parameters.stack_timeout = self.connect_timeout_s
        parameters.blocked_connection_timeout = None
        return parameters


class RabbitBroker:
    """Implements the port `Broker`; to be used in the event loop that connected it.

    Two connections, because RabbitMQ stops reading from a connection that publishes when it runs low on
    memory or disk: getting and acknowledging, which relieve it, must go on.
    """

    def __init__(self, bridge: Bridge, publisher: Publisher, getter: Getter, links: Sequence[Link]) -> None:
        """Use `RabbitBroker.connect` instead."""
        self._bridge = bridge
        self._publisher = publisher
        self._getter = getter
        self._links = links

    @classmethod
    async def connect(cls, settings: RabbitSettings, rng: random.Random) -> "RabbitBroker":
        """Connect to RabbitMQ; later losses of the connection are repaired without being asked.

        Also lowers the interpreter's switch interval (`threads.share_interpreter`).

        Args:
            settings: How to reach it.
            rng: Chance for pauses between attempts; not to be used by others from now on.

        Raises:
            BrokerUnavailableError: Nothing answers there, or it refuses us.
            InvalidValueError: The URL cannot be read.
        """
        parameters = settings.parameters()
        share_interpreter()
        bridge = Bridge("qlm-rabbitmq")
        try:
            return await bridge.call(partial(cls._start, bridge, settings, parameters, rng))
        except LinkBrokenError as error:
            await bridge.close()
            where = f"{parameters.host}:{parameters.port}"
            raise BrokerUnavailableError(f"no RabbitMQ could be reached at {where}: {error}") from error
        except BaseException:
            await bridge.close()
            raise

    @classmethod
    async def _start(
        cls,
        bridge: Bridge,
        settings: RabbitSettings,
        parameters: pika.connection.Parameters,
        rng: random.Random,
    ) -> "RabbitBroker":
        timeout_s = settings.confirm_timeout_s
        publishing = Link(parameters, settings.backoff, rng)
        getting = Link(parameters, settings.backoff, rng)
        publisher = Publisher(settings.kind, timeout_s)
        getter = Getter(getting, settings.kind, channels=settings.get_channels, timeout_s=timeout_s, rng=rng)
        await publishing.start(publisher)
        try:
            await getting.start(getter)
        except LinkBrokenError:
            await publishing.close()
            raise
        return cls(bridge, publisher, getter, (getting, publishing))

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; the queue is declared on first use.

        Returns when the broker has confirmed it, which it does after syncing it to disk.

        Raises:
            BrokerUnavailableError: It is not known to be stored.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(error: BrokerUnavailableError | None) -> None:
            self._bridge.here(partial(_settle, stored, error))

        self._bridge.there(partial(self._publisher.put, queue, body, settled))
        await stored

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front; fewer, or none, if the queue holds fewer.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        return await self._bridge.call(partial(self._getter.get, queue, limit), undo=self._getter.give_back)

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` says of the bodies of up to `limit` messages from the front, which stay.

        They are taken and returned, which marks them redelivered; a process that dies meanwhile returns them
        by that. A quorum queue with a delivery limit counts each look as a return.

        Raises:
            BrokerUnavailableError: The broker cannot be reached, or others looked for too long.
        """
        return await self._bridge.call(partial(self._getter.peek, queue, look, limit))

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """Take up to `limit` of the first `looks_max` messages whose body is `wanted`; the others stay.

        Raises:
            BrokerUnavailableError: The broker cannot be reached, or others looked for too long.
        """
        work = partial(self._getter.pick, queue, wanted, limit, looks_max)
        return await self._bridge.call(work, undo=self._getter.give_back)

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here. Sent, but not confirmed: a crash may bring the message back.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        await self._bridge.call(partial(self._getter.ack, delivery))

    async def requeue(self, delivery: Delivery) -> None:
        """Give a message back; it is marked redelivered from then on.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        await self._bridge.call(partial(self._getter.requeue, delivery))

    async def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue (not those handed out); 0 for a queue never used."""
        return await self._bridge.call(partial(self._getter.depth, queue))

    async def queues(self) -> Sequence[QueueName]:
        """Names of all queues ever published to, by any process; waits while another process asks."""
        return await self._bridge.call(self._getter.names)

    async def close(self) -> None:
        """Let go of the connections; what is handed out returns to its queues. Later calls do nothing."""
        if self._bridge.is_open:
            await self._bridge.call(self._shut)
            await self._bridge.close()

    async def _shut(self) -> None:
        self._publisher.close()
        for link in self._links:
            await link.close()


def _settle(stored: asyncio.Future[None], error: BrokerUnavailableError | None) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)
