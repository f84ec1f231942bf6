"""Round robin, as a load balancer does."""

from bisect import bisect_left, bisect_right

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.assignment import assign
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_round_robin(problem: Problem) -> Plan:
    """Assign the groups of each model, in order of arrival, to the instances that run it in turn.

    Service times, priorities and present places are ignored; the deadline stands for the arrival, as in
    `plan_fcfs`.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return RoundRobin()(problem)


class RoundRobin:
    """Round robin over successive plans: groups keep their place, and the turns go on."""

    def __init__(self) -> None:
        self._last: dict[ModelId, InstanceId] = {}
        self._given: dict[GroupId, InstanceId] = {}

    def __call__(self, problem: Problem) -> Plan:
        """Plan as `plan_round_robin` does, and remember the assignment."""
        waiting = {group.id for group in problem.groups}
        self._given = {group: at for group, at in self._given.items() if group in waiting}
        return assign(problem, sorted(problem.groups, key=by_deadline), self._choose, method="round-robin")

    def _choose(self, group: PlannedGroup, able: tuple[InstanceId, ...]) -> InstanceId:
        given = self._given.get(group.id)
        if given is not None and _holds(able, given):
            return given
        last = self._last.get(group.model)
        # Behind the last one in the order of ids, whether or not that one is still there.
        turn = able[0 if last is None else bisect_right(able, last) % len(able)]
        self._last[group.model] = self._given[group.id] = turn
        return turn


def _holds(ids: tuple[InstanceId, ...], wanted: InstanceId) -> bool:
    at = bisect_left(ids, wanted)
    return at < len(ids) and ids[at] == wanted
