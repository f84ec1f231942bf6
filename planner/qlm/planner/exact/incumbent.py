"""Local search for the exact solver's incumbent, which is also its answer if time runs out."""

from typing import Final

import numpy as np

from qlm.planner.arrays import Ints
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.compiling.compiled import compiled
from qlm.planner.exact.lanes import Lane, Lanes
from qlm.planner.exact.penalty import add_time, delay, group_penalty, swap_s
from qlm.planner.problem import Problem
from qlm.planner.swapping.compiled import swap_models, tier_of

SWEEPS_MAX: Final = 20
"""Most sweeps over all groups and places."""

GAIN_MIN_S: Final = 1e-6
"""Least improvement that is accepted, so that rounding cannot make the search cycle."""

Queues = list[list[int]]
"""Groups (positions in `Lanes.groups`) per instance of the problem, in order."""


def find_incumbent(problem: Problem, lanes: Lanes) -> tuple[Queues, float]:
    """Plan by earliest deadline first, then move each group to its best place until no move helps.

    Returns:
        The queues, and their penalty in seconds.
    """
    search = _Search(lanes, _edf(problem, lanes))
    for _ in range(SWEEPS_MAX):
        if not any([search.improve(group) for group in range(len(lanes.groups))]):
            break
    return search.queues, float(sum(search.costs_s))


def penalty_of(lanes: Lanes, queues: Queues) -> float:
    """Return the penalty of queues, in seconds."""
    return float(sum(_Search(lanes, queues).costs_s))


def _edf(problem: Problem, lanes: Lanes) -> Queues:
    place = {lanes.arrays.groups[g]: at for at, g in enumerate(lanes.groups)}
    plan = plan_edf(problem)
    return [[place[group] for group in plan.queues[i]] for i in lanes.arrays.instances]


class _Search:
    """Queues with their costs."""

    def __init__(self, lanes: Lanes, queues: Queues) -> None:
        self.queues = queues
        self._lane = {i: lane for lane, same in zip(lanes.lanes, lanes.instances, strict=True) for i in same}
        self.costs_s = [self._cost(i, queue) for i, queue in enumerate(queues)]

    def improve(self, group: int) -> bool:
        """Move a group to its best place if that helps; True if it was moved."""
        source = next(i for i, queue in enumerate(self.queues) if group in queue)
        rest = [g for g in self.queues[source] if g != group]
        rest_s = self._cost(source, rest)
        best_s, best = self.costs_s[source] - rest_s - GAIN_MIN_S, None
        for i, queue in enumerate(self.queues):
            kept, now_s = (rest, rest_s) if i == source else (queue, self.costs_s[i])
            for trial in self._insertions(i, kept, group):
                added_s = self._cost(i, trial) - now_s
                if added_s < best_s:
                    best_s, best = added_s, (i, trial)
        return self._apply(source, rest, rest_s, best)

    def _apply(self, source: int, rest: list[int], rest_s: float, best: tuple[int, list[int]] | None) -> bool:
        if best is None:
            return False
        self.queues[source], self.costs_s[source] = rest, rest_s
        target, queue = best
        self.queues[target], self.costs_s[target] = queue, self._cost(target, queue)
        return True

    def _insertions(self, i: int, queue: list[int], group: int) -> list[list[int]]:
        lane = self._lane[i]
        if not lane.runs[group]:
            return []
        priority = lane.priority
        low = sum(1 for g in queue if priority[g] < priority[group])
        high = sum(1 for g in queue if priority[g] <= priority[group])
        return [[*queue[:at], group, *queue[at:]] for at in range(low, high + 1)]

    def _cost(self, i: int, queue: list[int]) -> float:
        return float(_queue_cost(self._lane[i], np.array(queue, dtype=np.int64)))


@compiled()
def _queue_cost(lane: Lane, queue: Ints) -> float:
    """Return the mean penalty of a queue over scenarios."""
    clock_s = lane.busy_s.copy()
    asleep = lane.asleep.copy()
    served = np.zeros(len(lane.service_s), dtype=np.int64)
    loaded, before, total_s = lane.loaded, -1, 0.0
    for group in queue:
        model, time_class = lane.model[group], lane.time_class[group]
        if model != loaded:
            delay(lane, clock_s, swap_s(lane, loaded, model, tier_of(asleep, 0, 0, model)))
            if before >= 0:
                add_time(clock_s, lane.tail_s, lane.time_class[before], served[lane.time_class[before]] - 1)
            else:
                delay(lane, clock_s, lane.leave_s)
            swap_models(lane.memory, asleep, 0, 0, 0, loaded, model)
            loaded = model
        total_s += lane.price_s[group] + group_penalty(lane, group, served[time_class], clock_s)
        add_time(clock_s, lane.service_s, time_class, served[time_class])
        served[time_class] += 1
        before = group
    return total_s
