"""Calls into the thread of the RabbitMQ client: what a cancelled caller does not get is undone."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qlm.broker.rabbitmq.bridge import Bridge
from support.flaky import until


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    made = Bridge("bridge under test")
    yield made
    await made.close()


async def test_an_answer_after_the_cancellation_is_undone(bridge: Bridge) -> None:
    undone, begun, goes_on = list[int](), asyncio.Event(), asyncio.Event()

    async def work() -> int:
        bridge.here(begun.set)
        await goes_on.wait()
        return 1

    caller = asyncio.create_task(bridge.call(work, undo=undone.append))
    await begun.wait()
    caller.cancel()
    await asyncio.wait((caller,))
    bridge.there(goes_on.set)
    await until(lambda: undone)
    assert caller.cancelled()


async def test_an_answer_in_the_moment_of_the_cancellation_is_undone(bridge: Bridge) -> None:
    """Its messages were with a client that nobody waited for, and in no queue."""
    undone = list[int]()

    def cancel() -> None:
        caller.cancel()

    async def work() -> int:
        # With the answer, in one batch: the caller is cancelled when it is done and has not gone on.
        asyncio.get_running_loop().call_soon(bridge.here, cancel)
        return 1

    caller: asyncio.Task[int] = asyncio.create_task(bridge.call(work, undo=undone.append))
    await until(lambda: caller.done() and undone)
    assert caller.cancelled()
    assert undone == [1]
