"""One process's connection to the global queue; when it breaks, what was handed out on it returns."""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery
from qlm.simulator.system.broker_server import BrokerServer, Message
from qlm.simulator.system.history import Confirmed, HandedOut, History, Published
from qlm.simulator.system.network import Lane, Network, Server, UnreachableError
from qlm.simulator.system.process import Process
from qlm.simulator.system.virtual_loop import VirtualLoop

R = TypeVar("R")


class BrokerLink:
    """A `qlm.domain.ports.broker.Broker` of one process; each method's contract is that of the port."""

    def __init__(
        self,
        process: Process,
        server: BrokerServer,
        network: Network,
        loop: VirtualLoop,
        history: History,
        *,
        accepts: bool = False,
    ) -> None:
        """Connect.

        Args:
            process: Whose connection it is.
            server: The global queue.
            network: What lies between.
            loop: The time.
            history: Notes what is confirmed and handed out.
            accepts: What is published here are requests of clients.
        """
        self._process = process
        self._server = server
        self._network = network
        self._loop = loop
        self._history = history
        self._accepts = accepts
        self._lane = Lane()
        self._number = server.connected()
        self._tags = itertools.count()
        self._out: dict[int, tuple[QueueName, Message]] = {}

    def drop(self) -> None:
        """Break the connection: what it holds is ready again, and cannot be settled on it any more."""
        for queue, message in self._out.values():
            self._server.put_back(queue, message)
        self._out.clear()

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably."""
        message = await self._call(lambda: self._store(queue, body))
        if self._accepts and message.request is not None:
            self._history.add(Confirmed(self._loop.time(), message.request.id))

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front."""
        return await self._call(lambda: self._hand_out(queue, self._server.take(queue, limit)))

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """Return what `look` says of the first messages."""
        bodies = await self._call(lambda: self._server.bodies(queue, limit))
        return [look(body) for body in bodies]

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """Take up to `limit` messages whose body is `wanted`."""
        return await self._call(
            lambda: self._hand_out(queue, self._server.pick(queue, wanted, limit, looks_max))
        )

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here."""
        self._tag(delivery)
        await self._call(lambda: self._settle(delivery))

    async def requeue(self, delivery: Delivery) -> None:
        """Give a message back."""
        self._tag(delivery)
        await self._call(lambda: self._server.put_back(delivery.queue, self._settle(delivery)))

    async def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue."""
        return await self._call(lambda: self._server.depth(queue))

    async def queues(self) -> Sequence[QueueName]:
        """Names of all queues ever published to."""
        return await self._call(self._server.names)

    async def close(self) -> None:
        """Let go; what is handed out returns."""
        self.drop()

    async def _call(self, do: Callable[[], R]) -> R:
        try:
            await self._network.send(self._process, Server.BROKER, self._lane)
            answer = do()
            await self._network.answer(self._process, Server.BROKER, self._lane)
        except UnreachableError as error:
            self.drop()
            raise BrokerUnavailableError(str(error)) from None
        return answer

    def _store(self, queue: QueueName, body: bytes) -> Message:
        message = self._server.publish(queue, body)
        if self._accepts and message.request is not None:
            self._history.add(Published(self._loop.time(), message.request, message.number))
        return message

    def _hand_out(self, queue: QueueName, messages: Sequence[Message]) -> Sequence[Delivery]:
        deliveries = []
        for message in messages:
            tag = next(self._tags)
            self._out[tag] = (queue, message)
            deliveries.append(Delivery(queue, (self._number, tag), message.body, message.redelivered))
            if message.request is not None:
                now_s, name = self._loop.time(), self._process.name
                self._history.add(HandedOut(now_s, message.request.id, name, message.redelivered))
                self._history.coverage["redelivered"] += message.redelivered
        return deliveries

    def _settle(self, delivery: Delivery) -> Message:
        """Take a message out of the hands of this connection."""
        return self._out.pop(self._tag(delivery))[1]

    def _tag(self, delivery: Delivery) -> int:
        match delivery.tag:
            case (self._number, int(tag)) if tag in self._out:
                return tag
        raise DeliveryLostError(f"a message of {delivery.queue} is not ours any more")
