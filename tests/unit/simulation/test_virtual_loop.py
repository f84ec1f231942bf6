"""The event loop without a world."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from simulation.process import Process, own_tasks
from simulation.virtual_loop import StandstillError, VirtualLoop


def run(work: Callable[[VirtualLoop], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    own_tasks(loop)
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()


def test_an_hour_passes_at_once() -> None:
    async def work(loop: VirtualLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run(work) == 3600


def test_what_is_due_at_one_moment_happens_in_the_same_order_each_time() -> None:
    async def work(loop: VirtualLoop) -> list[int]:
        order: list[int] = []

        async def one(number: int, pause: Callable[[float], Awaitable[None]]) -> None:
            await pause(1.0)
            order.append(number)

        await asyncio.gather(*(one(n, (asyncio.sleep, loop.pause)[n % 2]) for n in range(20)))
        return order

    assert sorted(run(work)) == list(range(20))
    assert run(work) == run(work)


def test_a_timeout_ends_what_would_take_longer() -> None:
    async def work(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return loop.time()

    assert run(work) == 2.5


def test_what_would_run_on_a_thread_runs_at_once() -> None:
    async def work(loop: VirtualLoop) -> tuple[int, float]:
        return await asyncio.to_thread(lambda: 42), loop.time()

    assert run(work) == (42, 0.0)


def test_a_standstill_is_an_error() -> None:
    async def work(loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StandstillError):
        run(work)


def test_a_killed_process_does_nothing_more() -> None:
    async def work(loop: VirtualLoop) -> list[float]:
        done: list[float] = []
        process = Process(loop, "p")

        async def child() -> None:
            while True:
                await asyncio.sleep(1)
                done.append(loop.time())

        async def parent() -> None:
            await asyncio.gather(child(), asyncio.create_task(child()))

        process.spawn(parent())
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)
        return done

    assert run(work) == [1, 1, 2, 2]


def test_a_process_that_stands_still_goes_on_with_what_became_due() -> None:
    async def work(loop: VirtualLoop) -> list[float]:
        done: list[float] = []
        process = Process(loop, "p")

        async def tick() -> None:
            while True:
                await asyncio.sleep(1)
                done.append(loop.time())

        process.spawn(tick())
        await asyncio.sleep(1.5)
        process.stand_still()
        await asyncio.sleep(5)
        process.go_on()
        await asyncio.sleep(2.5)
        process.stand_still()
        process.kill()
        await asyncio.sleep(5)
        return done

    assert run(work) == [1, 6.5, 7.5, 8.5]
