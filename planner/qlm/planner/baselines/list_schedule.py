"""List scheduling: groups are taken in some order, and each goes to the instance on which it ends first.

Cost: O(groups x (instances + models + longest queue)); 1600 groups on 100 instances in tens of milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qlm.domain.ids import GroupId
from qlm.planner.baselines.lane import Lane, lanes_of, queues_of
from qlm.planner.baselines.openings import Openings
from qlm.planner.problem import Plan, PlannedGroup, Problem

NOWHERE: Final[Mapping[GroupId, int]] = MappingProxyType({})
"""No group belongs anywhere."""

Insert = Callable[[Lane, PlannedGroup, float], int]
"""Where a lane takes a group: its place among the lane's groups, given the lane, the group and now_s."""


def at_end(lane: Lane, group: PlannedGroup, now_s: float) -> int:
    """Behind all that is there."""
    return len(lane.groups)


def list_schedule(
    problem: Problem, order: Iterable[PlannedGroup], insert: Insert = at_end, *, method: str
) -> Plan:
    """Place groups one after the other.

    Args:
        problem: What waits, and the fleet.
        order: Its groups, in the order in which they choose.
        insert: Where the chosen lane takes a group.
        method: Name in the plan.

    Returns:
        A plan with each placeable group on exactly one queue.
    """
    lanes = lanes_of(problem)
    home = {group: at for at, lane in enumerate(lanes) for group in lane.instance.queue}
    left = place(lanes, order, insert, now_s=problem.now_s, move_s=problem.move_s, home=home)
    return Plan(queues=queues_of(lanes), unplaceable=tuple(sorted(group.id for group in left)), method=method)


def place(
    lanes: Sequence[Lane],
    order: Iterable[PlannedGroup],
    insert: Insert,
    *,
    now_s: float,
    move_s: float = 0.0,
    home: Mapping[GroupId, int] = NOWHERE,
) -> list[PlannedGroup]:
    """Add groups to lanes, one after the other, each where it ends first.

    Args:
        lanes: What they are added to.
        order: The groups, in the order in which they choose.
        insert: Where the chosen lane takes a group.
        now_s: The present on the clock of the deadlines.
        move_s: What a lane must gain over the one where a group belongs.
        home: Where groups belong, as indices of lanes.

    Returns:
        The groups that no lane runs.
    """
    groups = list(order)
    openings = Openings(lanes, (group.model for group in groups))
    left: list[PlannedGroup] = []
    for group in groups:
        at = openings.first(group, home=home.get(group.id), move_s=move_s)
        if at is None:
            left.append(group)
            continue
        lane = lanes[at]
        lane.insert(insert(lane, group, now_s), group)
        openings.changed(at)
    return left
