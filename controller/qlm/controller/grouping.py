"""Request groups as counted ranges: how many there are, how large, and which new arrivals each takes.

A pure function of what the store says: the sums of what groups cover and of what waits are made equal.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qlm.controller.balancing import EVEN, Spread
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup
from qlm.domain.view import ClassView

NewGroupId = Callable[[RequestClass], GroupId]


class Regrouped(NamedTuple):
    """What becomes of the groups of a class.

    Attributes:
        changes: To be applied, in order.
        groups: The class's groups as they will be, in order.
        homes: Where groups that have moved, or are new, belong.
    """

    changes: list[PlanChange]
    groups: list[Group]
    homes: dict[GroupId, InstanceId]


def regroup(
    view: ClassView,
    *,
    size_max: int,
    now_ns: int,
    linger_s: float,
    new_id: NewGroupId,
    spread: Spread = EVEN,
) -> Regrouped:
    """Make the groups of a class cover exactly its waiting requests.

    Args:
        view: The class as the store sees it.
        size_max: Requests per group at most (delta times the average batch size; QLM, algorithm 1).
        now_ns: The present.
        linger_s: An empty group stays open this long, so that the next arrival joins it at once.
        new_id: Names a new group.
        spread: What load balance asks for.

    """
    changes: list[PlanChange] = []
    groups: list[Group] = []
    for group in view.groups:
        idle = group.remaining == 0 and now_ns - group.created_ns > linger_s * 1e9
        if group.remaining == 0 and (group.sealed or idle):
            changes.append(CloseGroup(id=group.id))
        else:
            groups.append(group)
    spill = view.queued - sum(group.remaining for group in groups)
    if spill < 0:
        _shrink(groups, -spill, changes)
        spill = 0
    spill += _cut(groups, spread, changes)
    homes: dict[GroupId, InstanceId] = {}
    if spill > 0:
        spill = _fill_open(view, groups, spill, size_max, changes)
        for home, count in _portions(spread.shares, spill, size_max):
            group = Group(
                id=new_id(view.cls),
                cls=view.cls,
                seq=groups[-1].seq + 1 if groups else 1,
                count=count,
                created_ns=now_ns,
                head_arrival_ns=view.ungrouped_arrival_ns,
            )
            groups.append(group)
            changes.append(CreateGroup(id=group.id, cls=view.cls, count=count))
            if home is not None:
                homes[group.id] = home
    _seal(groups, size_max, changes)
    if groups and groups[-1].sealed:
        group = Group(id=new_id(view.cls), cls=view.cls, seq=groups[-1].seq + 1, count=0, created_ns=now_ns)
        groups.append(group)
        changes.append(CreateGroup(id=group.id, cls=view.cls, count=0))
    if groups and not groups[-1].remaining and spread.home is not None:
        homes[groups[-1].id] = spread.home
    return Regrouped(changes, groups, homes)


def _cut(groups: list[Group], spread: Spread, changes: list[PlanChange]) -> int:
    """Take what the open group is not to keep out of it, and seal it if it is to be left; return how much."""
    if not groups or groups[-1].sealed or not groups[-1].remaining or not spread.leave:
        return 0
    keep = groups[-1].remaining if spread.keep is None else min(spread.keep, groups[-1].remaining)
    surplus = groups[-1].remaining - keep
    groups[-1] = group = replace(groups[-1], count=groups[-1].count - surplus, sealed=True)
    changes.append(ResizeGroup(id=group.id, count=group.count, sealed=True))
    return surplus


def _shrink(groups: list[Group], surplus: int, changes: list[PlanChange]) -> None:
    """Take cancelled or otherwise pulled requests off the newest groups."""
    for index in range(len(groups) - 1, -1, -1):
        cut = min(surplus, groups[index].remaining)
        if cut:
            surplus -= cut
            groups[index] = replace(groups[index], count=groups[index].count - cut)
            group = groups[index]
            changes.append(ResizeGroup(id=group.id, count=group.count, sealed=group.sealed))


def _fill_open(
    view: ClassView, groups: list[Group], spill: int, size_max: int, changes: list[PlanChange]
) -> int:
    """Give ungrouped requests to the newest group if it is open; return how many are left."""
    if not groups or groups[-1].sealed or groups[-1].count >= size_max:
        return spill
    taken = min(spill, size_max - groups[-1].count)
    head_ns = groups[-1].head_arrival_ns or view.ungrouped_arrival_ns
    groups[-1] = replace(groups[-1], count=groups[-1].count + taken, head_arrival_ns=head_ns)
    changes.append(ResizeGroup(id=groups[-1].id, count=groups[-1].count, sealed=False))
    return spill - taken


def _portions(
    shares: Sequence[tuple[InstanceId, int]], requests: int, size_max: int
) -> Iterator[tuple[InstanceId | None, int]]:
    """Cut requests into groups: a share each, as far as they go, and none larger than `size_max`."""
    for home, share in (*shares, (None, requests)):
        left = min(share, requests)
        requests -= left
        while left > 0:
            yield home, min(left, size_max)
            left -= size_max


def _seal(groups: list[Group], size_max: int, changes: list[PlanChange]) -> None:
    """Seal what is full, and all but the newest: nobody joins those."""
    for index, group in enumerate(groups):
        if not group.sealed and (group.count >= size_max or index < len(groups) - 1):
            groups[index] = replace(group, sealed=True)
            changes.append(ResizeGroup(id=group.id, count=group.count, sealed=True))
