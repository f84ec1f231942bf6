"""Receiving from RabbitMQ: a channel that breaks while its connection goes on."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from qlm.broker.rabbitmq.connection import NOT_FOUND, Connection, Got, LinkBrokenError
from qlm.broker.rabbitmq.getter import Getter
from qlm.broker.rabbitmq.link import Link
from qlm.broker.rabbitmq.registry import Registry
from qlm.broker.topology import QueueKind
from qlm.domain.errors import DeliveryLostError
from qlm.domain.ids import QueueName
from support.gateway import until

Q = QueueName("q")


class OneMessage:
    """Connection to a server with one message; each channel can break alone."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[LinkBrokenError] = asyncio.get_running_loop().create_future()
        self.channels: list[OneMessageChannel] = []
        self.unused: list[str] = []

    async def channel(self) -> "OneMessageChannel":
        self.channels.append(OneMessageChannel(self))
        return self.channels[-1]

    async def over(self, work: Callable[[Any], Awaitable[Any]], timeout_s: float) -> Any:
        return await work(self)

    async def connection(self, timeout_s: float) -> "OneMessage":
        return self


class OneMessageChannel:
    """Channel of it."""

    def __init__(self, connection: OneMessage) -> None:
        self._connection = connection
        self.broken: LinkBrokenError | None = None
        self.gave = False

    async def get(self, queue: str) -> Got:
        self.gave = True
        return Got(1, False, b"body")

    async def depth(self, queue: str) -> int:
        raise LinkBrokenError("no such queue", NOT_FOUND)

    async def private_queue(self) -> str:
        return "private"

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        pass

    async def unbind(self, queue: str, exchange: str, key: str) -> None:
        self._connection.unused.append(key)

    async def declare(self, queue: str, arguments: object) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_messages_of_a_channel_that_broke_keep_no_queue_in_use() -> None:
    server = OneMessage()
    link, registry, rng = cast("Link", server), cast("Registry", None), random.Random(1)
    getter = Getter(link, QueueKind(), registry, channels=1, timeout_s=60.0, rng=rng, forget_s=0.04)
    await getter.up(cast("Connection", server))
    (delivery,) = await getter.get(Q, 1)
    (source,) = [each for each in server.channels if each.gave]
    source.broken = LinkBrokenError("an error of this channel")
    await until(lambda: bool(server.unused))
    with pytest.raises(DeliveryLostError):
        await getter.ack(delivery)
