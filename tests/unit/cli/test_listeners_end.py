"""A gateway that is told to stop a second time while the tasks beside its listeners end."""

import asyncio

import pytest

from qlm.cli.runtime.listeners import end_gateway


@pytest.mark.parametrize("cancelled_again", [False, True])
async def test_a_second_cancellation_is_kept_for_the_listeners(cancelled_again: bool) -> None:
    begun, ending, may_end, how = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[bool]()

    async def helper() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()

    async def shut_down(at_once: bool) -> None:
        how.append(at_once)

    helpers = [asyncio.create_task(helper())]
    await begun.wait()
    task = asyncio.create_task(end_gateway(helpers, shut_down))
    await ending.wait()
    if cancelled_again:
        task.cancel()
    may_end.set()
    await asyncio.wait([task])
    assert (how, task.cancelled()) == ([cancelled_again], cancelled_again)
