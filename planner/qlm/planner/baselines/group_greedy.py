"""Group-greedy: the largest backlog of one model first, and all of it before the model is changed."""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from qlm.domain.ids import ModelId
from qlm.planner.baselines.lane import Lane, lanes_of, queues_of
from qlm.planner.baselines.orders import urgency
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_group_greedy(problem: Problem) -> Plan:
    """Let each instance that is free take the model with the most waiting requests.

    The instance whose queue has drained first goes on with the model that it has loaded as long as groups of
    it wait, and else takes the model of which the most requests wait; either way it gets one group, the
    one with the earliest deadline. Priorities are strict: all this is done for one after the other.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    lanes = lanes_of(problem)
    left: list[PlannedGroup] = []
    for _, groups in groupby(sorted(problem.groups, key=urgency), key=lambda group: group.priority):
        left.extend(_share_out(lanes, groups))
    return Plan(
        queues=queues_of(lanes), unplaceable=tuple(sorted(group.id for group in left)), method="group-greedy"
    )


def _share_out(lanes: Sequence[Lane], groups: Iterable[PlannedGroup]) -> list[PlannedGroup]:
    """Give groups of one priority, by deadline, to lanes; return those that no lane runs."""
    backlog = _Backlog(groups)
    free = [(lane.last.clock_s, at) for at, lane in enumerate(lanes)]
    heapq.heapify(free)
    while free and not backlog.empty:
        _, at = free[0]
        group = backlog.take(lanes[at])
        if group is None:
            heapq.heappop(free)
            continue
        lanes[at].insert(len(lanes[at].groups), group)
        heapq.heapreplace(free, (lanes[at].last.clock_s, at))
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
        """Whether nothing waits any more."""
        return not self._left

    def take(self, lane: Lane) -> PlannedGroup | None:
        """Give a lane its next group; None if nothing that it runs waits."""
        kind = lane.instance.kind
        requests = self._requests.get(kind, {})
        waiting = [model for model, count in requests.items() if count and model in lane.kind.models]
        if not waiting:
            return None
        loaded = lane.last.loaded
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
        """What nobody has taken."""
        return list(self._left.values())
