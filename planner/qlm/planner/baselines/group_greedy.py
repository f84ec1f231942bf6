"""Group-greedy: the largest backlog of one model first, and all of it before the model is changed."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from qlm.domain.ids import ModelId
from qlm.planner.baselines.orders import by_urgency
from qlm.planner.baselines.schedule import Schedule, empty_schedules, queues_of
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_group_greedy(problem: Problem) -> Plan:
    """Let each free instance take the model with the most waiting requests.

    The instance whose queue ends first keeps its loaded model as long as groups of it wait. Otherwise it
    takes the model with the most waiting requests. It gets one group at a time, that with the earliest
    deadline. Priorities are strict: they are planned one after the other.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    schedules = empty_schedules(problem)
    left: list[PlannedGroup] = []
    for _, groups in groupby(sorted(problem.groups, key=by_urgency), key=lambda group: group.priority):
        left.extend(_assign(schedules, groups))
    return Plan(
        queues=queues_of(schedules),
        unplaceable=tuple(sorted(group.id for group in left)),
        method="group-greedy",
    )


def _assign(schedules: Sequence[Schedule], groups: Iterable[PlannedGroup]) -> list[PlannedGroup]:
    """Assign groups of one priority, by deadline; return those that no instance runs."""
    backlog = _Backlog(groups)
    free = [(schedule.last.clock_s, at) for at, schedule in enumerate(schedules)]
    heapq.heapify(free)
    while free and not backlog.empty:
        _, at = free[0]
        group = backlog.take(schedules[at])
        if group is None:
            heapq.heappop(free)
            continue
        schedules[at].insert(len(schedules[at].groups), group)
        heapq.heapreplace(free, (schedules[at].last.clock_s, at))
    return backlog.rest()


class _Backlog:
    """Waiting groups by kind and model; a group waits for each kind that could run it."""

    def __init__(self, groups: Iterable[PlannedGroup]) -> None:
        self._left: dict[str, PlannedGroup] = {}
        self._queues: dict[str, dict[ModelId, deque[PlannedGroup]]] = {}
        self._requests: dict[str, dict[ModelId, int]] = {}
        for group in groups:
            self._left[group.id] = group
            for kind in group.time:
                self._queues.setdefault(kind, {}).setdefault(group.model, deque()).append(group)
                requests = self._requests.setdefault(kind, {})
                requests[group.model] = requests.get(group.model, 0) + group.requests

    @property
    def empty(self) -> bool:
        """True if nothing waits any more."""
        return not self._left

    def take(self, schedule: Schedule) -> PlannedGroup | None:
        """Remove and return the next group of an instance; None if nothing that it runs waits."""
        kind = schedule.instance.kind
        requests = self._requests.get(kind, {})
        waiting = [model for model, count in requests.items() if count and model in schedule.kind.models]
        if not waiting:
            return None
        loaded = schedule.last.loaded
        if loaded is not None and loaded in waiting:
            return self._next(kind, loaded)
        return self._next(kind, min(waiting, key=lambda model: (-requests[model], model)))

    def _next(self, kind: str, model: ModelId) -> PlannedGroup:
        queue = self._queues[kind][model]
        while (group := queue.popleft()).id not in self._left:
            pass
        del self._left[group.id]
        for each in group.time:
            self._requests[each][model] -= group.requests
        return group

    def rest(self) -> list[PlannedGroup]:
        """Return the groups that no instance has taken."""
        return list(self._left.values())
