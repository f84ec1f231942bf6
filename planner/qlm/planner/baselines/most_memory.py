"""The instance with the most KV cache left: algorithm 2 of SLO-aware annealing.

The paper orders the requests of an instance by annealing; that is the batch policy `annealing`. Here they
come in order of arrival.
"""

from collections import Counter

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.baselines.assignment import assign
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.problem import Plan, PlannedGroup, Problem
from qlm.rct_estimator.kv_fit import MEMORY_UTILITY


def plan_most_memory(problem: Problem) -> Plan:
    """Assign groups, in order of arrival, to the instance with the most KV cache left, in tokens.

    Service times, priorities and present places are ignored; the deadline stands for the arrival, as in
    `plan_fcfs`. If the most that is left is too little for a group, all caches count as empty again.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return MostMemory()(problem)


class MostMemory:
    """The same over successive plans: groups keep their place, and what is left is kept."""

    def __init__(self) -> None:
        self._left: dict[InstanceId, float] = {}  # shares of the caches; 1 if missing
        self._given: dict[GroupId, InstanceId] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Plan as `plan_most_memory` does, and remember the assignment."""
        waiting = {group.id for group in problem.groups}
        self._given = {group: at for group, at in self._given.items() if group in waiting}
        groups = Counter(self._given.values())
        costs = {each.id: problem.kinds[each.kind].models for each in problem.instances}

        def choose(group: PlannedGroup, able: tuple[InstanceId, ...]) -> InstanceId:
            given = self._given.get(group.id)
            if given is None or given not in able:
                # Equation 20: the tokens that fit into free memory.
                fit = {id: MEMORY_UTILITY * costs[id][group.model].kv_tokens for id in able}
                given = self._given[group.id] = self._take(group, fit, groups)
                groups[given] += 1
            return given

        order = sorted(problem.groups, key=by_deadline)
        return assign(problem, order, choose, method="most-memory")

    def _take(
        self, group: PlannedGroup, fit: dict[InstanceId, float], groups: Counter[InstanceId]
    ) -> InstanceId:
        """Take the tokens of a group where most is left; of equal instances, where the fewest groups are."""

        def left(id: InstanceId) -> float:
            return self._left.get(id, 1.0) * fit[id]

        def most() -> InstanceId:
            return max(fit, key=lambda id: (left(id), -groups[id]))

        tokens = group.requests * group.request_tokens
        if left(most()) < tokens:
            self._left.clear()
        chosen = most()
        if fit[chosen]:
            self._left[chosen] = max(0.0, left(chosen) - tokens) / fit[chosen]
        return chosen
