"""Request groups as counted ranges: how many there are, how large, and which new arrivals each takes.

A pure function of what the store says: the sums of what groups cover and of what waits are made equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup
from qlm.domain.view import ClassView

NewGroupId = Callable[[RequestClass], GroupId]


def regroup(
    view: ClassView, *, size_max: int, now_ns: int, linger_s: float, new_id: NewGroupId
) -> tuple[list[PlanChange], list[Group]]:
    """Make the groups of a class cover exactly its waiting requests.

    Args:
        view: The class as the store sees it.
        size_max: Requests per group at most (delta times the average batch size; QLM, algorithm 1).
        now_ns: The present.
        linger_s: An empty group stays open this long, so that the next arrival joins it at once.
        new_id: Names a new group.

    Returns:
        The changes, and the class's groups as they will be, in order.
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
    elif spill > 0:
        _grow(view, groups, spill, size_max, changes, new_id, now_ns)
    return changes + _seal_full(groups, size_max), groups


def _shrink(groups: list[Group], surplus: int, changes: list[PlanChange]) -> None:
    """Take cancelled or otherwise pulled requests off the newest groups."""
    for index in range(len(groups) - 1, -1, -1):
        cut = min(surplus, groups[index].remaining)
        if cut:
            surplus -= cut
            groups[index] = replace(groups[index], count=groups[index].count - cut)
            group = groups[index]
            changes.append(ResizeGroup(id=group.id, count=group.count, sealed=group.sealed))


def _grow(
    view: ClassView,
    groups: list[Group],
    spill: int,
    size_max: int,
    changes: list[PlanChange],
    new_id: NewGroupId,
    now_ns: int,
) -> None:
    """Give ungrouped requests to the newest open group, then to new ones."""
    if groups and not groups[-1].sealed and groups[-1].count < size_max:
        taken = min(spill, size_max - groups[-1].count)
        spill -= taken
        head_ns = groups[-1].head_arrival_ns or view.ungrouped_arrival_ns
        groups[-1] = replace(groups[-1], count=groups[-1].count + taken, head_arrival_ns=head_ns)
        changes.append(ResizeGroup(id=groups[-1].id, count=groups[-1].count, sealed=False))
    seq = groups[-1].seq if groups else 0
    while spill > 0:
        seq, count = seq + 1, min(spill, size_max)
        spill -= count
        group = Group(
            id=new_id(view.cls),
            cls=view.cls,
            seq=seq,
            count=count,
            created_ns=now_ns,
            head_arrival_ns=view.ungrouped_arrival_ns,
        )
        groups.append(group)
        changes.append(CreateGroup(id=group.id, cls=view.cls, count=count))


def _seal_full(groups: Sequence[Group], size_max: int) -> list[PlanChange]:
    return [
        ResizeGroup(id=group.id, count=group.count, sealed=True)
        for group in groups
        if not group.sealed and group.count >= size_max
    ]
