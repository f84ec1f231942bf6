"""Tasks end, however many cancellations their code swallows; tried on the semantics of every Python."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.shell.tasks import LIMIT_S, REPEAT_S, end_tasks, run_to_end, run_together
from simulation.virtual_loop import VirtualLoop


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with hours in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def swallow(times: int, cleanup_s: float = 0.0) -> None:
    """Work for ever, ignoring the first cancellations; then clean up."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(cleanup_s)


async def wait_for_of_3_11(future: asyncio.Future[None]) -> None:
    """Wait as `asyncio.wait_for` of Python 3.11 did: with a result there, a cancellation is forgotten."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        if not future.done():
            raise


@given(swallowed=st.lists(st.integers(0, 18), min_size=1, max_size=8))
def test_tasks_end_however_many_cancellations_they_swallow(swallowed: list[int]) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(swallow(times)) for times in swallowed]
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        assert await end_tasks(tasks) == []
        assert all(task.done() for task in tasks)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s == pytest.approx(max(swallowed) * REPEAT_S, abs=1e-6)

    in_virtual_time(main)


def test_a_cancellation_that_arrives_with_the_result_is_repeated() -> None:
    answers: list[asyncio.Future[None]] = []

    async def redis_like() -> None:
        while True:
            answers.append(asyncio.get_running_loop().create_future())
            await wait_for_of_3_11(answers[-1])

    async def main() -> None:
        task = asyncio.create_task(redis_like())
        await asyncio.sleep(0)
        answers[0].set_result(None)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert len(answers) == 2, "this cancellation was meant to be swallowed"
        assert await end_tasks([task]) == []
        assert task.cancelled()

    in_virtual_time(main)


def test_tasks_that_never_end_are_named_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stuck = asyncio.create_task(swallow(100), name="pull")
        good = asyncio.create_task(swallow(0))
        await asyncio.sleep(0)
        with caplog.at_level(logging.ERROR):
            assert await end_tasks({stuck, good}, grace_s=3, limit_s=2) == [stuck]
        assert good.cancelled()
        assert asyncio.get_running_loop().time() == pytest.approx(5)
        assert "swallow (pull)" in caplog.text
        await end_tasks([stuck], limit_s=1000)

    in_virtual_time(main)


def test_cleaning_up_has_its_grace_before_it_is_cancelled() -> None:
    async def main() -> None:
        task = asyncio.create_task(swallow(0, cleanup_s=20.0))
        await asyncio.sleep(0)
        await end_tasks([task], grace_s=30.0)
        assert asyncio.get_running_loop().time() == pytest.approx(20)

    in_virtual_time(main)


def test_tasks_started_while_others_end_are_ended_too() -> None:
    async def main() -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def replaced() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                tasks.add(asyncio.create_task(swallow(2)))

        tasks.add(asyncio.create_task(replaced()))
        await asyncio.sleep(0)
        await end_tasks(tasks)
        assert [task.done() for task in tasks] == [True, True]

    in_virtual_time(main)


def test_a_caller_that_is_cancelled_still_ends_the_tasks() -> None:
    async def main() -> None:
        task = asyncio.create_task(swallow(1))
        await asyncio.sleep(0)
        ending = asyncio.create_task(end_tasks([task], grace_s=60.0))
        await asyncio.sleep(1)
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled()
        assert task.cancelled()
        assert asyncio.get_running_loop().time() == pytest.approx(1), "at once"

    in_virtual_time(main)


def test_the_failure_of_one_ends_what_runs_together() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise LookupError("lost")

    async def main() -> None:
        with pytest.raises(LookupError, match="lost"):
            await run_together(swallow(3), fail())
        assert len(asyncio.all_tasks()) == 1

    in_virtual_time(main)


def test_a_process_ends_all_tasks_and_says_which_do_not(caplog: pytest.LogCaptureFixture) -> None:
    async def leave(times: int) -> None:
        left.append(asyncio.create_task(swallow(times)))
        await asyncio.sleep(0)

    async def main() -> None:
        stuck: list[bool] = []
        await run_to_end(leave(5), lambda: stuck.append(True))
        assert stuck == []
        await run_to_end(leave(50), lambda: stuck.append(True))
        assert stuck == [True]
        assert "swallow" in caplog.text
        assert asyncio.get_running_loop().time() == pytest.approx(6 * REPEAT_S + LIMIT_S, abs=REPEAT_S)
        await end_tasks(left, limit_s=1000)

    left: list[asyncio.Task[None]] = []
    in_virtual_time(main)
