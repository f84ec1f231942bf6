"""List scheduling: groups are taken in some order, and each goes to the instance on which it ends first.

Cost: O(groups x (instances + models + longest queue)); 1600 groups on 100 instances in tens of milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qlm.domain.ids import GroupId
from qlm.planner.baselines.earliest_start import EarliestStarts
from qlm.planner.baselines.schedule import Schedule, empty_schedules, queues_of
from qlm.planner.problem import Plan, PlannedGroup, Problem

NOWHERE: Final[Mapping[GroupId, int]] = MappingProxyType({})
"""No group has a home."""

Insert = Callable[[Schedule, PlannedGroup, float], int]
"""Returns the place of a group in a schedule, given schedule, group and `now_s`."""


def at_end(schedule: Schedule, group: PlannedGroup, now_s: float) -> int:
    """Return the place behind the last group."""
    return len(schedule.groups)


def list_schedule(
    problem: Problem, order: Iterable[PlannedGroup], insert: Insert = at_end, *, method: str
) -> Plan:
    """Place groups one after the other, each where it ends first.

    Args:
        problem: Groups and fleet.
        order: The groups in list order.
        insert: Returns the place in the chosen schedule.
        method: Name of the method in the plan.

    Returns:
        A plan with each placeable group on exactly one queue.
    """
    schedules = empty_schedules(problem)
    home = {group: at for at, schedule in enumerate(schedules) for group in schedule.instance.queue}
    left = place(schedules, order, insert, now_s=problem.now_s, move_s=problem.move_s, home=home)
    return Plan(
        queues=queues_of(schedules), unplaceable=tuple(sorted(group.id for group in left)), method=method
    )


def place(
    schedules: Sequence[Schedule],
    order: Iterable[PlannedGroup],
    insert: Insert,
    *,
    now_s: float,
    move_s: float = 0.0,
    home: Mapping[GroupId, int] = NOWHERE,
) -> list[PlannedGroup]:
    """Add groups to schedules, one after the other, each where it ends first.

    Args:
        schedules: Schedules of the fleet, extended in place.
        order: The groups in list order.
        insert: Returns the place in the chosen schedule.
        now_s: The present on the clock of the deadlines.
        move_s: Seconds that another instance must gain over a group's home.
        home: Home of groups, as indices of schedules.

    Returns:
        The groups that no instance runs.
    """
    groups = list(order)
    earliest = EarliestStarts(schedules, (group.model for group in groups))
    left: list[PlannedGroup] = []
    for group in groups:
        at = earliest.first(group, home=home.get(group.id), move_s=move_s)
        if at is None:
            left.append(group)
            continue
        schedule = schedules[at]
        schedule.insert(insert(schedule, group, now_s), group)
        earliest.update(at)
    return left
