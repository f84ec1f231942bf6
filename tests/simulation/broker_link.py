"""Connection of one process to the broker; when it breaks, its unsettled messages return to their queues."""

import itertools
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final, TypeVar

from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery
from simulation.broker_server import BrokerServer, Message
from simulation.history import Confirmed, History, MessageDelivered, Published
from simulation.network import Channel, Network, Server, UnreachableError
from simulation.process import Process
from simulation.virtual_loop import VirtualLoop

R = TypeVar("R")

PUBLISH_TIMEOUT_S: Final = 3.0
"""Time limit of a publication."""


class BrokerLink:
    """`qlm.domain.ports.broker.Broker` of one process."""

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
        """Connect; `accepts` is True for gateways, whose messages are requests of clients."""
        self._process = process
        self._server = server
        self._network = network
        self._loop = loop
        self._history = history
        self._accepts = accepts
        self._channel = Channel()
        self._number = server.connected()
        self._tags = itertools.count()
        self._out: dict[int, tuple[QueueName, Message]] = {}

    def drop(self) -> None:
        """Break the connection: its messages are ready again, and it cannot settle them any more."""
        for queue, message in self._out.values():
            self._server.put_back(queue, message)
        self._out.clear()

    async def publish(self, queue: QueueName, body: bytes) -> None:
        await self._pass_alarm(queue, body)
        message = await self._call(lambda: self._store(queue, body))
        if self._accepts and message.request is not None:
            self._history.add(Confirmed(self._loop.time(), message.request.id))

    def get_now(self, queue: QueueName, limit: int = 1) -> None:
        """Do nothing: a server cannot answer at once."""

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        return await self._call(lambda: self._deliver(queue, self._server.take(queue, limit)))

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        bodies = await self._call(lambda: self._server.bodies(queue, limit))
        return [look(body) for body in bodies]

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        return await self._call(
            lambda: self._deliver(queue, self._server.pick(queue, wanted, limit, looks_max))
        )

    async def ack(self, delivery: Delivery) -> None:
        self._tag(delivery)
        await self._call(lambda: self._acknowledge(delivery))

    async def requeue(self, delivery: Delivery) -> None:
        self._tag(delivery)
        await self._call(lambda: self._server.put_back(delivery.queue, self._settle(delivery)))

    async def depth(self, queue: QueueName) -> int:
        return await self._call(lambda: self._server.depth(queue))

    async def queues(self) -> Sequence[QueueName]:
        return await self._call(self._server.names)

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        return await self._call(lambda: self._server.delete_empty(queues))

    async def probe(self) -> None:
        if self._server.alarm.until_s > self._loop.time():
            raise BrokerUnavailableError("publishers are blocked")
        await self._call(lambda: None)

    async def close(self) -> None:
        self.drop()

    async def _pass_alarm(self, queue: QueueName, body: bytes) -> None:
        """Wait until the broker lets publishers send, but not for ever."""
        alarm = self._server.alarm
        left_s = alarm.until_s - self._loop.time()
        if left_s <= 0:
            return
        self._history.coverage["publisher blocked"] += 1
        if left_s > PUBLISH_TIMEOUT_S:
            if alarm.late():
                self._loop.call_at(alarm.until_s, self._store, queue, body, context=Context())
            await self._loop.pause(PUBLISH_TIMEOUT_S)
            raise BrokerUnavailableError("not confirmed in time: publishers are blocked")
        await self._loop.pause(left_s)

    async def _call(self, do: Callable[[], R]) -> R:
        try:
            await self._network.send(self._process, Server.BROKER, self._channel)
            answer = do()
            await self._network.answer(self._process, Server.BROKER, self._channel)
        except UnreachableError as error:
            self.drop()
            raise BrokerUnavailableError(str(error)) from None
        return answer

    def _store(self, queue: QueueName, body: bytes) -> Message:
        message = self._server.publish(queue, body)
        if self._accepts and message.request is not None:
            self._history.add(Published(self._loop.time(), message.request, message.number))
        return message

    def _deliver(self, queue: QueueName, messages: Sequence[Message]) -> Sequence[Delivery]:
        deliveries = []
        for message in messages:
            tag = next(self._tags)
            self._out[tag] = (queue, message)
            deliveries.append(Delivery(queue, (self._number, tag), message.body, message.redelivered))
            if message.request is not None:
                now_s, name = self._loop.time(), self._process.name
                self._history.add(MessageDelivered(now_s, message.request.id, name, message.redelivered))
                self._history.coverage["redelivered"] += message.redelivered
        return deliveries

    def _acknowledge(self, delivery: Delivery) -> None:
        self._settle(delivery)
        self._server.acknowledged(delivery.queue)

    def _settle(self, delivery: Delivery) -> Message:
        return self._out.pop(self._tag(delivery))[1]

    def _tag(self, delivery: Delivery) -> int:
        match delivery.tag:
            case (self._number, int(tag)) if tag in self._out:
                return tag
        raise DeliveryLostError(f"a message of {delivery.queue} was not delivered on this connection")
