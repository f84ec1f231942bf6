"""Earliest deadline first with same-model grouping: list scheduling that gives a plan at once.

Groups are taken by priority and deadline; each goes to the instance on which it ends first, swaps
included, and there behind the last group of its model if that makes no later group miss its deadline,
else at the end.
"""

from dataclasses import replace
from typing import Final

from qlm.planner.baselines.lane import Lane, is_late
from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import urgency
from qlm.planner.problem import Plan, PlannedGroup, Problem

PASSED_MAX: Final = 500
"""Groups that one group may be inserted before; behind more it goes to the end. Bounds the time of a plan
whose queues are far longer than live ones (16 groups on 100 instances)."""


def plan_edf(problem: Problem) -> Plan:
    """Order all groups by earliest deadline first with same-model grouping.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=urgency), beside_its_model, method="edf")


def plan_edf_late_last(problem: Problem) -> Plan:
    """Order as `plan_edf` does, but what is late already behind all that can be in time, like batch work.

    Args:
        problem: What waits, and the fleet.
    """
    groups = tuple(
        replace(group, deadline_s=None)
        if group.deadline_s is not None and group.deadline_s <= problem.now_s
        else group
        for group in problem.groups
    )
    return plan_edf(replace(problem, groups=groups))


def beside_its_model(lane: Lane, group: PlannedGroup, now_s: float) -> int:
    """Insert behind the last group of the same model unless a deadline that held would then be missed."""
    end = len(lane.groups)
    spot = _behind_model(lane, group)
    if not 0 < end - spot <= PASSED_MAX:
        return end
    passed = lane.groups[spot:]
    if any(other.priority < group.priority for other in passed):
        return end
    missed_at_end = group.requests if is_late(group, lane.after(lane.last, group), now_s) else 0
    for other, moment in zip(passed, lane.moments[spot:], strict=True):
        missed_at_end += other.requests if is_late(other, moment, now_s) else 0
    missed, moment = 0, lane.before(spot)
    for other in (group, *passed):
        moment = lane.after(moment, other)
        missed += other.requests if is_late(other, moment, now_s) else 0
        if missed > missed_at_end:
            return end
    return spot


def _behind_model(lane: Lane, group: PlannedGroup) -> int:
    """The place behind the last group of the same model, or of the model that is loaded; else the end."""
    for spot in range(len(lane.groups), 0, -1):
        if lane.groups[spot - 1].model == group.model:
            return spot
    return 0 if group.model == lane.start.loaded else len(lane.groups)
