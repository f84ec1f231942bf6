"""Shortest job first, by the predicted length of a request."""

from collections.abc import Set as AbstractSet

from qlm.domain.ids import GroupId
from qlm.domain.urgency import deadline_or_last
from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_sjf(problem: Problem) -> Plan:
    """Order groups by the predicted length of one of their requests; place each where it ends first.

    The length of a request is its share of the group's service time and its own tail (service / requests +
    tail), in the mean, on the fastest kind of the fleet. Deadlines decide between equals; priorities and
    models are ignored.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    fleet = {instance.kind for instance in problem.instances}

    def length(group: PlannedGroup) -> tuple[float, float, GroupId]:
        return (_request_s(group, problem, fleet), deadline_or_last(group.deadline_s), group.id)

    return list_schedule(problem, sorted(problem.groups, key=length), method="sjf")


def _request_s(group: PlannedGroup, problem: Problem, fleet: AbstractSet[str]) -> float:
    """Return the predicted length of one request, in seconds; `inf` if no instance runs the group."""
    return min(
        (
            time.service.mean / group.requests + time.tail.mean
            for kind, time in group.time.items()
            if kind in fleet and group.model in problem.kinds[kind].models
        ),
        default=float("inf"),
    )
