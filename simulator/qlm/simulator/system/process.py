"""Processes inside one event loop, each of which can be killed at any await, as by kill -9."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final
from weakref import ref

from qlm.domain.steady_clock import SteadyClock
from qlm.simulator.system.virtual_loop import VirtualLoop

_CURRENT: Final[ContextVar["Process | None"]] = ContextVar("process", default=None)

CLOCK_BELIEVED_AFTER_S: Final = 2.0
"""Time until a clock that was set forwards is believed: a trial is too short for the minute of production."""

_TASKS_MAX: Final = 64
"""Tasks of a process before those that have ended are left out for the first time."""


class Process:
    """What one operating-system process would be: tasks that die together, and a clock of its own.

    Once killed, it reaches nobody any more: its links to store, broker and clients refuse everything, so
    what its tasks do while they are torn down has no effect.

    Attributes:
        name: For the trace; a further life of the same part has the same name.
        alive: It has not been killed.
        offset_ns: By how much its machine's wall clock is wrong.
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.offset_ns = 0
        self._loop = loop
        self._clock = SteadyClock(
            lambda: loop.now_ns + self.offset_ns, lambda: loop.now_ns, CLOCK_BELIEVED_AFTER_S
        )
        # What they wait for holds them. Callbacks to let go of each would be an eighth of the loop's work.
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._tasks_max = _TASKS_MAX

    def now_ns(self) -> int:
        """Return what its clock says: it is a `Clock`."""
        return self._clock.now_ns()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task that belongs to it, and all that this task starts."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        return self._loop.create_task(work, context=context)

    def kill(self) -> None:
        """End it without a word."""
        self.alive = False
        for task in self._running():
            task.cancel()

    def own(self, task: "asyncio.Task[Any]") -> None:
        """Take a task that one of its tasks has started."""
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [ref(each) for each in self._running()]
            self._tasks_max = _TASKS_MAX + 2 * len(self._tasks)
        self._tasks.append(ref(task))
        if not self.alive:
            task.cancel()

    def _running(self) -> "list[asyncio.Task[Any]]":
        """Its tasks that have not ended, in the order in which they began."""
        return [task for each in self._tasks if (task := each()) is not None and not task.done()]


def own_tasks(loop: VirtualLoop) -> None:
    """Let each task of the loop belong to the process whose task has started it."""
    loop.set_task_factory(_make_task)  # type: ignore[arg-type]  # what the stubs expect cannot be written


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    task = asyncio.Task(work, loop=loop, context=context)
    process = _CURRENT.get() if context is None else context.get(_CURRENT)
    if process is not None:
        process.own(task)
    return task
