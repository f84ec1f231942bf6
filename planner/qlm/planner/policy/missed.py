"""What a plan misses, and why: each reason is found by taking it away.

A late group is looked at first where nothing but its own speed holds it up, then with one hindrance after
the other added, each time on the instance that is best for it. The reason is the first hindrance with which
at least half as many of its requests are late as in the plan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.policy.standing import Queue, queues_of, urgency_of
from qlm.planner.problem import Plan, PlannedGroup, Problem
from qlm.planner.verify.closed_form import group_lateness
from qlm.planner.verify.placing import Places
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import NOTHING, Normal

LATE_REQUESTS_MIN: Final = 0.5
"""Groups with fewer expected late requests are not named."""

GROUPS_EXPLAINED_MAX: Final = 20
"""Groups that a reason is looked for: some 3 ms each on 100 instances with 1600 groups."""

EXPLAINED_SHARE: Final = 0.5
"""A hindrance is the reason if it makes at least this share of the late requests late."""


class Reason(StrEnum):
    """Why requests are late, from what no plan can change to what the plan chose."""

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
class Missed:
    """A group with requests that are expected to be late.

    Attributes:
        group: Its id.
        instance: Where it is placed; None if nowhere.
        requests: In it.
        late_requests: Expected number that miss the deadline.
        reason: The main one.
    """

    group: GroupId
    instance: InstanceId | None
    requests: int
    late_requests: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Misses:
    """What a plan misses.

    Attributes:
        groups: Groups with expected late requests.
        late_requests: Theirs in all.
        rows: Those with most of them, and why.
    """

    groups: int
    late_requests: float
    rows: tuple[Missed, ...]


def missed(
    problem: Problem,
    plan: Plan,
    *,
    late_requests_min: float = LATE_REQUESTS_MIN,
    groups_max: int = GROUPS_EXPLAINED_MAX,
) -> Misses:
    """Name the groups that a plan lets miss their deadlines, and say why.

    Args:
        problem: What waits, and the fleet.
        plan: A feasible answer to it.
        late_requests_min: Groups with fewer expected late requests are left out.
        groups_max: Groups to explain at most.

    Returns:
        The most late requests first, then by id; groups that can be placed nowhere count as late in full.
    """
    places = Places.of(problem)
    served = serve(places, plan)
    sums = group_lateness(served, problem.now_s)
    late = [(each, row.late_requests) for each, row in zip(served, sums, strict=True)]
    found = [_Late(each.group, each.instance.id, count) for each, count in late if count >= late_requests_min]
    nowhere = (places.groups[name] for name in plan.unplaceable)
    found += [_Late(group, None, float(group.requests)) for group in nowhere if group.deadline_s is not None]
    found = sorted((each for each in found if each.requests > 0), key=lambda x: (-x.requests, x.group.id))
    queues = queues_of(places, plan) if found else []
    return Misses(
        groups=len(found),
        late_requests=math.fsum(each.requests for each in found),
        rows=tuple(_row(each, queues, places) for each in found[:groups_max]),
    )


@dataclass(frozen=True, slots=True)
class _Late:
    """A group, where it is, and how many of its requests are expected to be late."""

    group: PlannedGroup
    instance: InstanceId | None
    requests: float


def _row(late: _Late, queues: Sequence[Queue], places: Places) -> Missed:
    nowhere = late.instance is None
    return Missed(
        group=late.group.id,
        instance=late.instance,
        requests=late.group.requests,
        late_requests=late.requests,
        reason=Reason.UNPLACEABLE if nowhere else _reason(late.group, late.requests, queues, places),
    )


Start = Callable[[Queue, PlannedGroup], Normal]
"""When a group would start on an instance with some of the hindrances."""


def _reason(group: PlannedGroup, late: float, queues: Sequence[Queue], places: Places) -> Reason:
    assert group.deadline_s is not None
    if group.deadline_s <= places.problem.now_s:
        return Reason.LATE_ON_ARRIVAL
    able = [queue for queue in queues if places.runs(queue.instance, group)]
    for reason, start in _HINDRANCES:
        best = _first_ended(able, group, start)
        if _late_from(best[0], group, best[1], places) >= EXPLAINED_SHARE * late:
            return reason
    return Reason.SACRIFICED


def _first_ended(queues: Sequence[Queue], group: PlannedGroup, start: Start) -> tuple[Queue, Normal]:
    """The instance that would end the group first by mean, and when it would start there."""
    best, best_s = None, math.inf
    for queue in queues:
        time = group.time[queue.instance.kind]
        own_s = time.drain.mean + time.tail.mean
        if best is not None and queue.instance.busy.mean + own_s >= best_s:
            continue
        at = start(queue, group)
        if best is None or at.mean + own_s < best_s:
            best, best_s = (queue, at), at.mean + own_s
    assert best is not None, "a placed group runs somewhere"
    return best


def _late_from(queue: Queue, group: PlannedGroup, start: Normal, places: Places) -> float:
    """Expected late requests of a group that starts at some time on an instance."""
    served = Served(
        instance=queue.instance,
        group=group,
        place=0,
        swap=None,
        swap_s=0.0,
        waits_for_tail=NOTHING,
        start=start,
    )
    (sums,) = group_lateness([served], places.problem.now_s)
    return sums.late_requests


def _idle(queue: Queue, group: PlannedGroup) -> Normal:
    return NOTHING


def _busy(queue: Queue, group: PlannedGroup) -> Normal:
    return queue.instance.busy


def _swapped(queue: Queue, group: PlannedGroup) -> Normal:
    return queue.start_behind(0, group.model)


def _behind_priority(queue: Queue, group: PlannedGroup) -> Normal:
    return queue.start_behind_some(group.model, lambda other: other.priority < group.priority)


def _behind_urgent(queue: Queue, group: PlannedGroup) -> Normal:
    mine, own = urgency_of(group), group.id
    return queue.start_behind_some(group.model, lambda other: urgency_of(other) <= mine and other.id != own)


_HINDRANCES: Final[tuple[tuple[Reason, Start], ...]] = (
    (Reason.TOO_SLOW, _idle),
    (Reason.NO_INSTANCE_FREE, _busy),
    (Reason.SWAP_NEEDED, _swapped),
    (Reason.HIGHER_PRIORITY_AHEAD, _behind_priority),
    (Reason.MORE_URGENT_AHEAD, _behind_urgent),
)
