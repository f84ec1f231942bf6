"""In-process subscriptions with slow, closed and several readers."""

import asyncio
import gc

from contract.suites.store.values import GATEWAY, metadata
from qlm.domain.ids import InstanceId
from qlm.domain.notices import InstanceNotice, QueueChanged
from qlm.domain.output import OutputSlice
from qlm.store.core.effects import Effects
from qlm.store.embedded.feed import Feeds


def _part(offset: int) -> OutputSlice:
    return OutputSlice(id=metadata(1).id, offset=offset, token_ids=(offset,))


async def test_a_reader_too_slow_loses_its_backlog_and_is_notified() -> None:
    feeds = Feeds(backlog_max=3)
    reader = feeds.outputs(GATEWAY)
    assert list(await anext(reader)) == []
    feeds.announce(Effects(outputs=[(GATEWAY, _part(n)) for n in range(3)]))
    assert list(await anext(reader)) == [_part(0), _part(1), _part(2)]
    feeds.announce(Effects(outputs=[(GATEWAY, _part(n)) for n in range(3, 8)]))
    assert list(await anext(reader)) == []
    assert list(await anext(reader)) == [_part(6), _part(7)]


async def test_a_subscription_counts_from_the_call_not_from_the_first_read() -> None:
    feeds = Feeds(backlog_max=10)
    reader = feeds.outputs(GATEWAY)
    feeds.announce(Effects(outputs=[(GATEWAY, _part(0))]))
    assert list(await anext(reader)) == []
    assert list(await anext(reader)) == [_part(0)]


async def test_equal_notices_at_hand_are_given_once() -> None:
    feeds = Feeds(backlog_max=10)
    instance = InstanceId("a")
    standing: list[InstanceNotice] = [QueueChanged()]
    reader = feeds.notices(instance, lambda: standing)
    feeds.announce(Effects(notices=[(instance, QueueChanged())] * 3))
    assert await anext(reader) == QueueChanged()
    next_one = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not next_one.done()
    feeds.announce(Effects(notices=[(instance, QueueChanged())]))
    assert await next_one == QueueChanged()


async def test_every_reader_receives_all_and_a_closed_one_costs_nothing() -> None:
    feeds = Feeds(backlog_max=10)
    readers = [feeds.wakeups() for _ in range(2)]
    gone = feeds.wakeups()
    assert [await anext(reader) for reader in readers] == ["subscribed"] * 2
    del gone
    gc.collect()
    feeds.announce(Effects(wakeups=["request"]))
    assert [await anext(reader) for reader in readers] == ["request"] * 2
    assert len(feeds._wakeups) == 2


async def test_closing_ends_the_iteration() -> None:
    feeds = Feeds(backlog_max=10)
    received: list[str] = []

    async def listen() -> None:
        async for reason in feeds.wakeups():
            received.append(reason)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    feeds.close()
    await asyncio.wait_for(task, 5)
    assert received == ["subscribed"]
