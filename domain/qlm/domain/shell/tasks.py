"""Cancellation that ends: the one way to stop asyncio tasks.

One call of `cancel` may be lost. Before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives
together with its result; `asyncio.TaskGroup` and `asyncio.run` cancel once and wait without limit, on every
version. Libraries that QLM depends on use all of them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

log = logging.getLogger("qlm.tasks")

REPEAT_S: Final = 0.5
"""Interval at which a task that goes on is cancelled again."""

LIMIT_S: Final = 10.0
"""Time of repeated cancellations after which a task is given up."""

Tasks = Collection[asyncio.Future[Any]]


async def end_tasks(
    tasks: Tasks, *, grace_s: float = REPEAT_S, limit_s: float = LIMIT_S
) -> list[asyncio.Future[Any]]:
    """Cancel tasks again and again until they have ended; their results and errors are dropped.

    If the caller is cancelled meanwhile, the tasks are cancelled again at once, and the caller's own
    cancellation is raised at the end.

    Args:
        tasks: The tasks; those added to the collection meanwhile are ended, too.
        grace_s: Time to clean up before the cancellation is repeated, seconds.
        limit_s: Time after that at which tasks that go on are logged and left to themselves, seconds.

    Returns:
        The tasks that have not ended.
    """
    loop = asyncio.get_running_loop()
    repeat_s = loop.time() + grace_s
    give_up_s = repeat_s + limit_s
    cancelled: asyncio.CancelledError | None = None
    seen: dict[asyncio.Future[Any], None] = {}  # ordered, so that a run repeats exactly
    while left := [task for task in list(tasks) if not task.done()]:
        seen |= dict.fromkeys(left)
        now_s = loop.time()
        if now_s >= give_up_s:
            log.error("not ended by cancellation, and given up: %s", ", ".join(map(_name, left)))
            break
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=min(max(repeat_s - now_s, REPEAT_S), give_up_s - now_s))
        except asyncio.CancelledError as error:
            cancelled = error
    for task in (*seen, *tasks):
        if task.done() and not task.cancelled():
            task.exception()  # as retrieved: the event loop reports it otherwise
    if cancelled is not None:
        raise cancelled
    return left


async def run_together(*works: Coroutine[Any, Any, None], grace_s: float = REPEAT_S) -> None:
    """Run coroutines until all have returned or one fails; then, or if cancelled, end them by `end_tasks`.

    Unlike a plain `await` of one of them, it ends even if they drop a cancellation.

    Raises:
        Exception: What the first of them raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(tasks, grace_s=grace_s)


async def run_to_end(work: Coroutine[Any, Any, None], stuck: Callable[[], None]) -> None:
    """Run the main coroutine of a process, then end all tasks that it left behind.

    Args:
        work: The main coroutine.
        stuck: Called if tasks go on regardless, to end the process: `asyncio.run` would wait for ever.
    """
    try:
        await work
    finally:
        this = asyncio.current_task()
        if await end_tasks([task for task in asyncio.all_tasks() if task is not this]):
            stuck()


def _name(task: asyncio.Future[Any]) -> str:
    if not isinstance(task, asyncio.Task):
        return repr(task)
    work = task.get_coro()
    return f"{getattr(work, '__qualname__', work)} ({task.get_name()})"
