"""Expected misses of a plan, and their reasons.

A late group is first timed with its own service time alone; then one hindrance after the other is added,
each time on the instance that is best for it. The reason is the first hindrance with which at least half as
many of its requests are late as in the plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.policy.planned_queue import PlannedQueue, planned_queues, urgency_of
from qlm.planner.problem import Plan, PlannedGroup, Problem
from qlm.planner.verify.closed_form import group_lateness
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import NOTHING, Normal

LATE_REQUESTS_MIN: Final = 0.5
"""Least expected late requests of a reported group."""

GROUPS_EXPLAINED_MAX: Final = 20
"""Most groups that are explained: some 3 ms each on 100 instances with 1600 groups."""

EXPLAINED_SHARE: Final = 0.5
"""Share of the late requests that the reason must make late."""


class Reason(StrEnum):
    """Reason of late requests, from what no plan can change to what the plan chose."""

    LATE_ON_ARRIVAL = "late_on_arrival"
    """The deadline had passed already."""
    TOO_SLOW = "too_slow"
    """Even alone on an idle instance with its model loaded they would be late, on every kind in the fleet."""
    NO_INSTANCE_FREE = "no_instance_free"
    """Each instance that runs the model is busy with what it has for too long."""
    SWAP_NEEDED = "swap_needed"
    """No instance has the model loaded and is free in time, and loading it takes too long."""
    HIGHER_PRIORITY_AHEAD = "higher_priority_ahead"
    """Work of a higher priority goes first on every instance, and takes too long."""
    MORE_URGENT_AHEAD = "more_urgent_ahead"
    """Work with an earlier deadline goes first on every instance, and takes too long."""
    SACRIFICED = "sacrificed"
    """Behind what is more urgent it could be in time; the plan lets others go first, for less in total."""
    UNPLACEABLE = "unplaceable"
    """No instance can run them at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedGroup:
    """A group with requests that are expected to be late.

    Attributes:
        instance: Instance of its queue; None without a place.
        requests: Number of its requests.
        late_requests: Expected number that miss the deadline.
        reason: Main reason.
    """

    group: GroupId
    instance: InstanceId | None
    requests: int
    late_requests: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """Expected misses of a plan.

    Attributes:
        groups: Number of groups with expected late requests.
        late_requests: Their late requests in all.
        rows: Groups with the most late requests, and the reasons.
    """

    groups: int
    late_requests: float
    rows: tuple[MissedGroup, ...]


def find_misses(
    problem: Problem,
    plan: Plan,
    *,
    late_requests_min: float = LATE_REQUESTS_MIN,
    groups_max: int = GROUPS_EXPLAINED_MAX,
) -> Misses:
    """Find the groups with expected misses, and explain them.

    Args:
        problem: The problem.
        plan: A feasible plan of it.
        late_requests_min: Least expected late requests of a reported group.
        groups_max: Most groups to explain.

    Returns:
        Groups by late requests, the most first, then by id. All requests of unplaceable groups are late.
    """
    index = ProblemIndex.of(problem)
    served = serve(index, plan)
    sums = group_lateness(served, problem.now_s)
    late = [(each, row.late_requests) for each, row in zip(served, sums, strict=True)]
    found = [_Late(each.group, each.instance.id, count) for each, count in late if count >= late_requests_min]
    nowhere = (index.groups[name] for name in plan.unplaceable)
    found += [_Late(group, None, float(group.requests)) for group in nowhere if group.deadline_s is not None]
    found = sorted((each for each in found if each.requests > 0), key=lambda x: (-x.requests, x.group.id))
    queues = planned_queues(index, plan) if found else []
    return Misses(
        groups=len(found),
        late_requests=math.fsum(each.requests for each in found),
        rows=tuple(_row(each, queues, index) for each in found[:groups_max]),
    )


@dataclass(frozen=True, slots=True)
class _Late:
    """A late group, its instance, and its expected number of late requests."""

    group: PlannedGroup
    instance: InstanceId | None
    requests: float


def _row(late: _Late, queues: Sequence[PlannedQueue], index: ProblemIndex) -> MissedGroup:
    nowhere = late.instance is None
    return MissedGroup(
        group=late.group.id,
        instance=late.instance,
        requests=late.group.requests,
        late_requests=late.requests,
        reason=Reason.UNPLACEABLE if nowhere else _reason(late.group, late.requests, queues, index),
    )


Start = Callable[[PlannedQueue, PlannedGroup], Normal]
"""Returns the start of a group on an instance with some of the hindrances."""


def _reason(group: PlannedGroup, late: float, queues: Sequence[PlannedQueue], index: ProblemIndex) -> Reason:
    assert group.deadline_s is not None
    if group.deadline_s <= index.problem.now_s:
        return Reason.LATE_ON_ARRIVAL
    able = [queue for queue in queues if index.runs(queue.instance, group)]
    for reason, start in _HINDRANCES:
        best = _first_ended(able, group, start)
        if _late_from(best[0], group, best[1], index) >= EXPLAINED_SHARE * late:
            return reason
    return Reason.SACRIFICED


def _first_ended(
    queues: Sequence[PlannedQueue], group: PlannedGroup, start: Start
) -> tuple[PlannedQueue, Normal]:
    """Return the instance that would end the group first by mean, and its start there."""
    best, best_s = None, math.inf
    for queue in queues:
        time = group.time[queue.instance.kind]
        own_s = time.service.mean + time.tail.mean
        earliest_s = 0.0 if start is _idle else queue.instance.busy.mean
        if best is not None and earliest_s + own_s >= best_s:
            continue
        at = start(queue, group)
        if best is None or at.mean + own_s < best_s:
            best, best_s = (queue, at), at.mean + own_s
    assert best is not None, "a placed group runs somewhere"
    return best


def _late_from(queue: PlannedQueue, group: PlannedGroup, start: Normal, index: ProblemIndex) -> float:
    """Return the expected late requests of a group that starts at a given time on an instance."""
    served = Served(
        instance=queue.instance,
        group=group,
        place=0,
        swap=None,
        swap_s=0.0,
        waits_for_tail=NOTHING,
        start=start,
    )
    (sums,) = group_lateness([served], index.problem.now_s)
    return sums.late_requests


def _idle(queue: PlannedQueue, group: PlannedGroup) -> Normal:
    return NOTHING


def _busy(queue: PlannedQueue, group: PlannedGroup) -> Normal:
    return queue.instance.busy


def _swapped(queue: PlannedQueue, group: PlannedGroup) -> Normal:
    return queue.start_after(0, group.model)


def _behind_priority(queue: PlannedQueue, group: PlannedGroup) -> Normal:
    return queue.start_after_matching(group.model, lambda other: other.priority < group.priority)


def _behind_urgent(queue: PlannedQueue, group: PlannedGroup) -> Normal:
    mine, own = urgency_of(group), group.id
    return queue.start_after_matching(
        group.model, lambda other: urgency_of(other) <= mine and other.id != own
    )


_HINDRANCES: Final[tuple[tuple[Reason, Start], ...]] = (
    (Reason.TOO_SLOW, _idle),
    (Reason.NO_INSTANCE_FREE, _busy),
    (Reason.SWAP_NEEDED, _swapped),
    (Reason.HIGHER_PRIORITY_AHEAD, _behind_priority),
    (Reason.MORE_URGENT_AHEAD, _behind_urgent),
)
