"""Earliest deadline first with same-model grouping: list scheduling that gives a plan at once.

Groups are taken by priority and deadline; each goes to the instance on which it ends first, swaps
included. There it is inserted behind the last group of its model if that makes no more requests late, else at
the end.
"""

from dataclasses import replace
from typing import Final

from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import by_urgency
from qlm.planner.baselines.schedule import Schedule, is_late
from qlm.planner.problem import Plan, PlannedGroup, Problem

PASSED_MAX: Final = 500
"""Most groups that one group may be inserted before; with more it goes to the end. Bounds the time of a
plan with queues far longer than live ones (16 groups per queue, with 1 600 groups on 100 instances)."""


def plan_edf(problem: Problem) -> Plan:
    """Order all groups by earliest deadline first with same-model grouping.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=by_urgency), beside_its_model, method="edf")


def plan_edf_late_last(problem: Problem) -> Plan:
    """Order as `plan_edf` does, but with groups past their deadline last, like batch work."""
    groups = tuple(
        replace(group, deadline_s=None)
        if group.deadline_s is not None and group.deadline_s <= problem.now_s
        else group
        for group in problem.groups
    )
    return plan_edf(replace(problem, groups=groups))


def beside_its_model(schedule: Schedule, group: PlannedGroup, now_s: float) -> int:
    """Return the place behind the last group of the same model; the end if that makes fewer requests late."""
    end = len(schedule.groups)
    place = _behind_model(schedule, group)
    if not 0 < end - place <= PASSED_MAX:
        return end
    passed = schedule.groups[place:]
    if any(other.priority < group.priority for other in passed):
        return end
    missed_at_end = group.requests if is_late(group, schedule.after(schedule.last, group), now_s) else 0
    for other, state in zip(passed, schedule.states[place:], strict=True):
        missed_at_end += other.requests if is_late(other, state, now_s) else 0
    missed, state = 0, schedule.before(place)
    for other in (group, *passed):
        state = schedule.after(state, other)
        missed += other.requests if is_late(other, state, now_s) else 0
        if missed > missed_at_end:
            return end
    return place


def _behind_model(schedule: Schedule, group: PlannedGroup) -> int:
    """Return the place behind the last group of the same model, or of the loaded model; else the end."""
    for place in range(len(schedule.groups), 0, -1):
        if schedule.groups[place - 1].model == group.model:
            return place
    return 0 if group.model == schedule.start.loaded else len(schedule.groups)
