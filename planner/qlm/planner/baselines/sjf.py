"""Shortest job first, by the predicted service time of a request."""

from collections.abc import Set as AbstractSet

from qlm.domain.ids import GroupId
from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import deadline_s
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_sjf(problem: Problem) -> Plan:
    """Order groups by the predicted service time of one request of theirs; place them by least end.

    The service time of a request is its share of the drain and its own tail (drain / requests + tail), in
    the mean, on the kind of the fleet that is best for it. Deadlines decide between equals; priorities and
    models count for nothing.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    fleet = {instance.kind for instance in problem.instances}

    def length(group: PlannedGroup) -> tuple[float, float, GroupId]:
        return (_request_s(group, problem, fleet), deadline_s(group), group.id)

    return list_schedule(problem, sorted(problem.groups, key=length), method="sjf")


def _request_s(group: PlannedGroup, problem: Problem, fleet: AbstractSet[str]) -> float:
    """Predicted service time of one request, in seconds; `inf` if no instance runs the group."""
    return min(
        (
            time.drain.mean / group.requests + time.tail.mean
            for kind, time in group.time.items()
            if kind in fleet and group.model in problem.kinds[kind].models
        ),
        default=float("inf"),
    )
