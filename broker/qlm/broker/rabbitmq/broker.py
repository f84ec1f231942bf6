"""Production broker: RabbitMQ through pika, in its own thread."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import pika

from qlm.broker.rabbitmq.bridge import Bridge
from qlm.broker.rabbitmq.connection import LinkBrokenError
from qlm.broker.rabbitmq.dropper import Dropper
from qlm.broker.rabbitmq.getter import Getter
from qlm.broker.rabbitmq.link import Backoff, Link
from qlm.broker.rabbitmq.publisher import Publisher, settle
from qlm.broker.rabbitmq.registry import Registry
from qlm.broker.threads import share_interpreter
from qlm.broker.topology import PROBE, QueueKind, queue_in
from qlm.domain.errors import BrokerUnavailableError, InvalidValueError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import UNHEARD_MAX_S, Broker, Delivery
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.outage import QUIET_S, Outage

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """Connection settings of RabbitMQ.

    Attributes:
        url: `amqp://user:password@host:port/vhost`, or amqps.
        deployment: Name that all queues begin with.
        kind: Declaration of queues.
        connect_timeout_s: Time limit of one attempt to connect.
        confirm_timeout_s: Time limit of a publish, and of the wait of any call for a lost connection.
        heartbeat_s: Interval of heartbeats; RabbitMQ closes the connection after two to three without one.
        get_channels: Maximum number of concurrent gets.
        backoff: Pauses between attempts to reconnect.
        forget_s: Time after its last use here for which a queue is not deleted.
    """

    url: str = field(repr=False)
    deployment: str = "qlm"
    kind: QueueKind = field(default_factory=QueueKind)
    connect_timeout_s: float = 5.0
    confirm_timeout_s: float = 10.0
    heartbeat_s: int = UNHEARD_MAX_S // 3
    get_channels: int = 4
    backoff: Backoff = field(default_factory=Backoff)
    forget_s: float = 30.0

    def parameters(self) -> pika.connection.Parameters:
        """Return the parameters of pika.

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


class _LossesFromThread:
    """Takes notes of one link in the loop of the process, which all its clients share."""

    def __init__(self, bridge: Bridge, outage: Outage) -> None:
        self._bridge = bridge
        self._outage = outage
        self._home = asyncio.get_running_loop()

    def lost(self, why: str) -> None:
        self._bridge.here(lambda: self._outage.lost(self, self._home.time(), why))

    def restored(self) -> None:
        self._bridge.here(self._restored)

    def _restored(self) -> None:
        self._outage.restored(self, self._home.time())
        self._home.call_later(QUIET_S, self._look)

    def _look(self) -> None:
        """Note that RabbitMQ is back: there may be no further call that would."""
        self._outage.worked(self._home.time())
        if self._outage.lasts:
            self._home.call_later(QUIET_S, self._look)


class RabbitBroker(Broker):
    """Broker client of RabbitMQ, for the event loop that connected it.

    It has two connections: when RabbitMQ is low on memory or disk, it stops reading from a connection that
    publishes, but gets and acknowledgements, which relieve it, must continue.
    """

    def __init__(
        self, bridge: Bridge, publisher: Publisher, getter: Getter, dropper: Dropper, links: Sequence[Link]
    ) -> None:
        """Use `RabbitBroker.connect` instead."""
        self._bridge = bridge
        self._publisher = publisher
        self._getter = getter
        self._dropper = dropper
        self._links = links

    @classmethod
    async def connect(
        cls,
        settings: RabbitSettings,
        rng: random.Random,
        faults: FaultLog | None = None,
        outage: Outage | None = None,
    ) -> "RabbitBroker":
        """Connect to RabbitMQ; later it reconnects by itself.

        Also lowers the interpreter's switch interval (`threads.share_interpreter`).

        Args:
            rng: Source of randomness for pauses between attempts; for this client only.
            faults: Failures of the process.
            outage: Log of the outages of RabbitMQ, for all clients of the process.

        Raises:
            BrokerUnavailableError: RabbitMQ does not answer there, or rejects the connection.
            InvalidValueError: The URL cannot be read.
        """
        parameters = settings.parameters()
        share_interpreter()
        bridge = Bridge("qlm-rabbitmq")
        outage = outage or Outage("broker")
        losses = _LossesFromThread(bridge, outage), _LossesFromThread(bridge, outage)
        try:
            return await bridge.call(partial(cls._start, bridge, settings, parameters, rng, faults, losses))
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
        faults: FaultLog | None,
        losses: "tuple[_LossesFromThread, _LossesFromThread]",
    ) -> "RabbitBroker":
        timeout_s = settings.confirm_timeout_s
        name_of = partial(queue_in, settings.deployment)
        publishing = Link(parameters, settings.backoff, rng, name_of, faults, losses[0])
        getting = Link(parameters, settings.backoff, rng, name_of, faults, losses[1])
        publisher = Publisher(settings.kind, timeout_s, settings.forget_s)
        registry = Registry(timeout_s, rng)
        getter = Getter(
            getting,
            settings.kind,
            registry,
            channels=settings.get_channels,
            timeout_s=timeout_s,
            rng=rng,
            forget_s=settings.forget_s,
        )
        dropper = Dropper(getting, publishing, settings.kind, registry, timeout_s)
        await publishing.start(publisher)
        try:
            await getting.start(getter)
        except LinkBrokenError:
            await publishing.close()
            raise
        return cls(bridge, publisher, getter, dropper, (getting, publishing))

    async def publish(self, queue: QueueName, body: bytes) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(error: BrokerUnavailableError | None) -> None:
            self._bridge.here(partial(settle, stored, error))

        self._bridge.there(partial(self._publisher.put, queue, body, settled))
        await stored

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        return await self._bridge.call(
            partial(self._getter.get, queue, limit), undo=self._getter.return_unclaimed
        )

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        # Messages are taken and returned, which marks them redelivered; if the process dies, that returns
        # them. A quorum queue with a delivery limit counts each look as a return.
        return await self._bridge.call(partial(self._getter.peek, queue, look, limit))

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        work = partial(self._getter.pick, queue, wanted, limit, looks_max)
        return await self._bridge.call(work, undo=self._getter.return_unclaimed)

    async def ack(self, delivery: Delivery) -> None:
        # Sent, but not confirmed: a crash may bring the message back.
        await self._bridge.call(partial(self._getter.ack, delivery))

    async def requeue(self, delivery: Delivery) -> None:
        await self._bridge.call(partial(self._getter.requeue, delivery))

    async def depth(self, queue: QueueName) -> int:
        return await self._bridge.call(partial(self._getter.depth, queue))

    async def queues(self) -> Sequence[QueueName]:
        return await self._bridge.call(self._getter.names)

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        return await self._bridge.call(partial(self._dropper.drop, queues))

    async def probe(self) -> None:
        await self._bridge.call(self._probe)

    async def _probe(self) -> None:
        await self._publisher.probe()
        await self._getter.depth(PROBE)

    async def close(self) -> None:
        if self._bridge.is_open:
            await self._bridge.call(self._shut)
            await self._bridge.close()

    async def _shut(self) -> None:
        self._publisher.close()
        for link in self._links:
            await link.close()
