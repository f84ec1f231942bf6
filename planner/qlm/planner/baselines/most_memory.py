"""The instance with the most KV cache left: algorithm 2 of SLO-aware annealing.

The paper orders the requests of an instance by annealing; that is the batch policy `annealing`. Here they
come in order of arrival.
"""

from collections import Counter
from collections.abc import Mapping

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.baselines.assignment import assign
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.problem import Plan, PlannedGroup, Problem
from qlm.rct_estimator.kv_fit import tokens_that_fit


def plan_most_memory(problem: Problem) -> Plan:
    """Assign groups, in order of arrival, to the instance with the most KV cache left, in tokens.

    Service times, priorities and present places are ignored; the deadline stands for the arrival, as in
    `plan_fcfs`. If the most that is left is too little for a group, each instance gets its cache once more.
    Where the size of a cache or of a request is unknown, the instance with the fewest groups is chosen.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return MostMemory()(problem)


class MostMemory:
    """The same over successive plans: groups keep their place, and what is left is kept."""

    def __init__(self) -> None:
        self._left: dict[InstanceId, float] = {}  # in caches; 1 if missing
        self._given: dict[GroupId, InstanceId] = {}
        self._requests: dict[GroupId, int] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Plan as `plan_most_memory` does, and remember the assignment."""
        waiting = {group.id for group in problem.groups}
        self._given = {group: at for group, at in self._given.items() if group in waiting}
        self._requests = {group: count for group, count in self._requests.items() if group in waiting}
        groups = Counter(self._given.values())
        costs = {each.id: problem.kinds[each.kind].models for each in problem.instances}
        self._left = {id: self._left.get(id, 1.0) for id in costs}

        def choose(group: PlannedGroup, able: tuple[InstanceId, ...]) -> InstanceId:
            # Equation 20, with the cache counted in tokens.
            fit = {id: tokens_that_fit(costs[id][group.model].kv_tokens, token_bytes=1.0) for id in able}
            given = self._given.get(group.id)
            if given not in fit:
                given = self._given[group.id] = self._choose(group, fit, groups)
                groups[given] += 1
            self._take(group, given, fit[given])
            return given

        order = sorted(problem.groups, key=by_deadline)
        return assign(problem, order, choose, method="most-memory")

    def _choose(
        self, group: PlannedGroup, fit: Mapping[InstanceId, float], groups: Counter[InstanceId]
    ) -> InstanceId:
        """Return where most is left; of equal instances, where the fewest groups are."""
        if not all(fit.values()):
            return min(fit, key=lambda id: groups[id])

        def most() -> InstanceId:
            return max(fit, key=lambda id: (self._left[id] * fit[id], -groups[id]))

        tokens = group.requests * group.request_tokens
        if self._left[most()] * fit[most()] < tokens:
            for id in fit:
                self._left[id] += 1.0
        return most()

    def _take(self, group: PlannedGroup, at: InstanceId, fit: float) -> None:
        """Take the tokens of the requests that the group did not have before."""
        more = max(0, group.requests - self._requests.get(group.id, 0))
        self._requests[group.id] = max(group.requests, self._requests.get(group.id, 0))
        if fit:
            self._left[at] -= more * group.request_tokens / fit
