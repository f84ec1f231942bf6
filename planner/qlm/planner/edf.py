"""Earliest deadline first with same-model grouping: list scheduling that gives a plan at once.

Groups are taken by priority and deadline; each goes to the instance on which it ends first, swaps
included, and there behind the last group of its model if that makes no later group miss its deadline,
else at the end.
"""

from qlm.planner.list_schedule import Lane, list_schedule, urgency
from qlm.planner.problem import Plan, PlannedGroup, Problem


def plan_edf(problem: Problem) -> Plan:
    """Order all groups by earliest deadline first with same-model grouping.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=urgency), _beside_its_model, method="edf")


def _beside_its_model(lane: Lane, group: PlannedGroup, now_s: float) -> list[PlannedGroup]:
    """Insert behind the last group of the same model unless a deadline that held would then be missed."""
    at_end = [*lane.groups, group]
    same = [i for i, other in enumerate(lane.groups) if other.model == group.model]
    if same:
        spot = same[-1] + 1
    elif group.model == lane.instance.loaded_model:
        spot = 0
    else:
        return at_end
    if any(other.priority < group.priority for other in lane.groups[spot:]):
        return at_end
    beside = [*lane.groups[:spot], group, *lane.groups[spot:]]
    return beside if lane.missed(beside, now_s) <= lane.missed(at_end, now_s) else at_end
