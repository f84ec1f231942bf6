"""Request groups as counted ranges of a class: their number, their sizes, and which arrivals join them.

Pure: makes the sum of what groups cover equal to the number of waiting requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from qlm.controller.core.balancing import BALANCED, BalanceTarget
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup
from qlm.domain.view import ClassView

NewGroupId = Callable[[RequestClass], GroupId]


class GroupChanges(NamedTuple):
    """Changes to the groups of a class.

    Attributes:
        changes: Plan changes, in the order to apply them.
        groups: The groups of the class after these, in order.
        placements: Instances of groups that are new or have moved.
    """

    changes: list[PlanChange]
    groups: list[Group]
    placements: dict[GroupId, InstanceId]


def regroup(
    view: ClassView,
    *,
    size_max: int,
    now_ns: int,
    linger_s: float,
    new_id: NewGroupId,
    balance: BalanceTarget = BALANCED,
) -> GroupChanges:
    """Return the changes that make the groups of a class cover exactly its waiting requests.

    Args:
        view: The class in the store.
        size_max: Largest group (delta times the average batch size; QLM, algorithm 1).
        now_ns: The present.
        linger_s: Time that an empty group stays open, so that the next arrival joins it at once.
        new_id: Returns the id of a new group.
        balance: Changes that load balance asks for.
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
    cut = _cut(groups, balance, changes)
    spill += cut + _split_off(groups, balance, changes)
    placements: dict[GroupId, InstanceId] = {}
    if spill > 0:
        if not cut:
            spill = _fill_open(view, groups, spill, size_max, changes)
        for instance, count in _portions(balance.shares, spill, size_max):
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
            if instance is not None:
                placements[group.id] = instance
    _seal(groups, size_max, changes)
    if groups and groups[-1].sealed:
        group = Group(id=new_id(view.cls), cls=view.cls, seq=groups[-1].seq + 1, count=0, created_ns=now_ns)
        groups.append(group)
        changes.append(CreateGroup(id=group.id, cls=view.cls, count=0))
    if groups and not groups[-1].remaining and balance.placement is not None:
        placements[groups[-1].id] = balance.placement
    return GroupChanges(changes, groups, placements)


def _cut(groups: list[Group], balance: BalanceTarget, changes: list[PlanChange]) -> int:
    """Split off what balance asks for of any groups; return the number of requests."""
    cut = 0
    for id, count in balance.cuts:
        index = next((at for at, group in enumerate(groups) if group.id == id), None)
        if index is None:
            continue
        taken = min(count, groups[index].remaining)
        cut += taken
        groups[index] = group = replace(groups[index], count=groups[index].count - taken)
        changes.append(ResizeGroup(id=id, count=group.count, sealed=group.sealed))
    return cut


def _split_off(groups: list[Group], balance: BalanceTarget, changes: list[PlanChange]) -> int:
    """Seal the open group if balance asks for it; return the number of requests split off it."""
    if not groups or groups[-1].sealed or not groups[-1].remaining or not balance.seal:
        return 0
    keep = groups[-1].remaining if balance.keep_max is None else min(balance.keep_max, groups[-1].remaining)
    surplus = groups[-1].remaining - keep
    groups[-1] = group = replace(groups[-1], count=groups[-1].count - surplus, sealed=True)
    changes.append(ResizeGroup(id=group.id, count=group.count, sealed=True))
    return surplus


def _shrink(groups: list[Group], surplus: int, changes: list[PlanChange]) -> None:
    """Remove requests that were cancelled, or pulled from elsewhere, from the newest groups."""
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
    """Add ungrouped requests to the newest group if it is open; return the number left."""
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
    """Yield instance and size of new groups: one share each, then the rest; none larger than `size_max`."""
    for instance, share in (*shares, (None, requests)):
        left = min(share, requests)
        requests -= left
        while left > 0:
            yield instance, min(left, size_max)
            left -= size_max


def _seal(groups: list[Group], size_max: int, changes: list[PlanChange]) -> None:
    """Seal full groups and all but the newest: no arrival joins those."""
    for index, group in enumerate(groups):
        if not group.sealed and (group.count >= size_max or index < len(groups) - 1):
            groups[index] = replace(group, sealed=True)
            changes.append(ResizeGroup(id=group.id, count=group.count, sealed=True))
