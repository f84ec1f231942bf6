"""Simulated processes in one event loop; each can be killed at any await, as by kill -9."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final
from weakref import ref

from qlm.domain.steady_clock import SteadyClock
from simulation.virtual_loop import VirtualLoop

_CURRENT: Final[ContextVar["Process | None"]] = ContextVar("process", default=None)

CLOCK_BELIEVED_AFTER_S: Final = 2.0
"""Time after which a clock that was set forwards is believed; production's minute is too long for a trial."""

_TASKS_MAX: Final = 64
"""Number of tasks at which a process first drops the ended ones from its list."""


class Process:
    """Stand-in for an operating-system process: tasks that die together, and a clock.

    Once it is killed, its links to store, broker and clients refuse everything. So its tasks have no effect
    while they are torn down.

    Attributes:
        name: Name of the part; a restarted part keeps it.
        pid: Its number among all processes of the trial.
        alive: False once killed.
        offset_ns: Error of its machine's wall clock.
    """

    def __init__(self, loop: VirtualLoop, name: str, pid: int = 0) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.offset_ns = 0
        self._loop = loop
        self._clock = SteadyClock(
            lambda: loop.now_ns + self.offset_ns, lambda: loop.now_ns, CLOCK_BELIEVED_AFTER_S
        )
        # Weak references: a task is kept alive by what it awaits. Done-callbacks that remove each task would
        # be an eighth of the loop's work.
        self._tasks: list[ref[asyncio.Task[Any]]] = []
        self._tasks_max = _TASKS_MAX

    @property
    def life(self) -> str:
        """Name of this process alone."""
        return f"{self.name}-{self.pid}"

    def now_ns(self) -> int:
        """Return the process's own time; implements `Clock`."""
        return self._clock.now_ns()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task that belongs to this process, as do all tasks that it starts."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        return self._loop.create_task(work, context=context)

    def stand_still(self) -> None:
        """Run nothing until `go_on`, as between SIGSTOP and SIGCONT."""
        if self.alive:
            self._loop.hold(self)

    def go_on(self) -> None:
        """Run again, beginning with all that became due meanwhile."""
        self._loop.let_go(self)

    def kill(self) -> None:
        """Cancel all tasks, without any shutdown."""
        self.alive = False
        self.go_on()
        for task in self._running():
            task.cancel()

    def own(self, task: "asyncio.Task[Any]") -> None:
        """Add a task that one of its tasks has started."""
        if len(self._tasks) >= self._tasks_max:
            self._tasks = [ref(each) for each in self._running()]
            self._tasks_max = _TASKS_MAX + 2 * len(self._tasks)
        self._tasks.append(ref(task))
        if not self.alive:
            task.cancel()

    def _running(self) -> "list[asyncio.Task[Any]]":
        """Return the tasks that have not ended, in order of their start."""
        return [task for each in self._tasks if (task := each()) is not None and not task.done()]


def own_tasks(loop: VirtualLoop) -> None:
    """Make each task of the loop belong to the process whose task started it."""
    loop.owner = _CURRENT
    loop.set_task_factory(_make_task)  # type: ignore[arg-type]  # what the stubs expect cannot be written


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    task = asyncio.Task(work, loop=loop, context=context)
    process = _CURRENT.get() if context is None else context.get(_CURRENT)
    if process is not None:
        process.own(task)
    return task
