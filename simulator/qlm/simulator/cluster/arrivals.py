"""Arrivals: at the times of the workload, and for later calls of a task a pause after the call before."""

from collections.abc import Callable

import numpy as np

from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue, Rank
from qlm.simulator.scenario import Workload


class Arrivals:
    """Schedules the arrival of each request of a workload."""

    def __init__(self, event_queue: EventQueue, workload: Workload, arrive: Callable[[int], None]) -> None:
        """Call `arrive` with the row of each request when it arrives."""
        self._event_queue = event_queue
        self._arrive = arrive
        self._arrival_ns: list[int] = workload.arrival_ns.tolist()
        tasks = workload.tasks
        self._pause_ns: list[int] | None = None if tasks is None else tasks.pause_ns.tolist()
        if tasks is None:
            self._left = [1] * len(workload)
            self._firsts = list(range(len(workload)))
        else:
            self._left = tasks.calls_left().tolist()
            self._firsts = np.flatnonzero(np.diff(tasks.task, prepend=-1)).tolist()

    def start(self) -> None:
        """Schedule the first arrival; each one schedules the next."""
        self._schedule_first(0)

    def ended(self, number: int, at_ns: int) -> None:
        """Schedule the call that follows a request which ended well at `at_ns`, if there is one."""
        if self._pause_ns is not None and self._left[number] > 1:
            later = number + 1
            due_ns = at_ns + self._pause_ns[later]
            self._event_queue.schedule(due_ns, Rank.ARRIVAL, later, self._arrive, later)

    def following(self, number: int) -> int:
        """Return the number of calls that follow a request, which never come if it does not end well."""
        return self._left[number] - 1

    def _schedule_first(self, index: int) -> None:
        if index < len(self._firsts):
            at_ns = EPOCH_NS + self._arrival_ns[self._firsts[index]]
            self._event_queue.schedule(at_ns, Rank.ARRIVAL, self._firsts[index], self._first, index)

    def _first(self, index: int) -> None:
        self._schedule_first(index + 1)
        self._arrive(self._firsts[index])
