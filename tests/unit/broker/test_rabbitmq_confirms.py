"""Confirms of RabbitMQ, one by one or several at once."""

import asyncio
import time
from functools import partial
from typing import Any, cast

from qlm.broker.rabbitmq.connection import Connection, LinkBrokenError, PublishEvents
from qlm.broker.rabbitmq.publisher import Publisher, settle
from qlm.broker.topology import PROBE, QueueKind
from support.gateway import until


class OpenConnection:
    """Connection and its channel, on which a number of messages have been published before."""

    def __init__(self, published: int) -> None:
        self.lost: asyncio.Future[LinkBrokenError] = asyncio.get_running_loop().create_future()
        self.blocked = self.broken = self.on_broken = self.on_blocked = self.on_unblocked = None
        self.published = published
        self.events: PublishEvents | None = None

    async def channel(self) -> "OpenConnection":
        return self

    async def confirm(self, events: PublishEvents) -> None:
        self.events = events

    async def declare(self, queue: str, arguments: object) -> None:
        pass

    def publish(self, queue: str, body: bytes) -> int:
        self.published += 1
        return self.published

    def drop(self, *_: Any) -> None:
        raise AssertionError("nothing is broken")


async def test_a_confirm_of_several_costs_what_it_confirms_however_many_were_confirmed_one_by_one() -> None:
    before = 50_000_000
    connection = OpenConnection(before)
    publisher = Publisher(QueueKind(), 60.0, 60.0)
    await publisher.up(cast("Connection", connection))
    stored = [asyncio.get_running_loop().create_future() for _ in range(4)]
    for each in stored:
        publisher.put(PROBE, b"", partial(settle, each))
    await until(lambda: connection.published == before + 4)
    assert connection.events is not None
    began_s = time.process_time()
    connection.events.confirmed(before + 2, False, True)
    connection.events.confirmed(before + 3, True, True)
    assert [each.done() for each in stored] == [True, True, True, False]
    assert time.process_time() - began_s < 0.5
    publisher.close()
    assert stored[3].exception() is not None
