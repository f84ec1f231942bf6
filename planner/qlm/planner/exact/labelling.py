"""The best order of every set of groups on one lane, by exact labelling (dynamic programming).

A label is an order of a set of groups: the end of service in each scenario, the cost, and what sleeps in
host memory. The next swap depends on that and on the last group. So of two labels of the same set and last
group and with the same asleep, one that is neither later in any scenario nor more expensive dominates the
other: penalties never fall when starts are delayed. Orders of a set differ only in their swaps, so few labels
are left. Where host memory never evicts (`Lane.evicts`), what sleeps depends on the set alone.
"""

from typing import Final, NamedTuple

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.exact.lanes import Lane
from qlm.planner.exact.limits import REQUEST_BLOCKS_MAX
from qlm.planner.exact.penalty import add_time, delay, group_penalty, swap_s
from qlm.planner.swapping.compiled import Rows, copy_row, equal_rows, swap_models, tier_of

SLACK: Final = 1e-9
"""Seconds by which a label may be worse and still dominate: rounding depends on the order of sums."""

COMPARE_STEPS: Final = 4
"""Average scenario steps of a comparison of two labels; most differ early."""


class Labels(NamedTuple):
    """Labels of one lane, L of them at most.

    Attributes:
        cost_s: Cost of each order; (L,).
        end_s: End of service; (L + 1, K), the last row for the label under evaluation.
        parent: Label that it extends, -1 for none; (L,).
        last: Its last group; (L,).
        asleep: What sleeps while that is served, the last row for the label under evaluation; (1, L + 1, H),
            or (1, 1, H) where host memory never evicts.
        next: Linked list of the labels of a set and last group, -1 at the end; (L,).
        head: First label of a set (bits) and last group; (2^N, N).
        best: Cheapest label of a set, -1 for none; (2^N,).
        used: Labels in use, then scenario steps done; (2,).
    """

    cost_s: Floats
    end_s: Floats
    parent: Ints
    last: Ints
    asleep: Rows
    next: Ints
    head: Ints
    best: Ints
    used: Ints

    def kept(self) -> "Labels":
        """Return the part needed to read orders back, without unused memory."""
        count = int(self.used[0])
        return self._replace(
            cost_s=self.cost_s[:count].copy(),
            end_s=np.empty((0, 0)),
            parent=self.parent[:count].copy(),
            last=self.last[:count].copy(),
            asleep=self.asleep[:, :0].copy(),
            next=self.next[:0].copy(),
            head=self.head[:0].copy(),
        )


def empty_labels(lane: Lane, labels_max: int) -> Labels:
    """Allocate labels."""
    groups, scenarios = len(lane.model), len(lane.busy_s)
    rows = labels_max if lane.evicts else 0
    return Labels(
        cost_s=np.empty(labels_max),
        end_s=np.empty((labels_max + 1, scenarios)),
        parent=np.empty(labels_max, dtype=np.int64),
        last=np.empty(labels_max, dtype=np.int64),
        asleep=np.empty((1, rows + 1, lane.asleep.shape[2]), dtype=np.int16),
        next=np.empty(labels_max, dtype=np.int64),
        head=np.full((1 << groups, groups), -1, dtype=np.int64),
        best=np.full(1 << groups, -1, dtype=np.int64),
        used=np.zeros(2, dtype=np.int64),
    )


@compiled()
def label_all(lane: Lane, labels: Labels, least_s: Floats, cutoff_s: float, steps_max: int) -> bool:
    """Label all sets of groups that a queue of this lane can have.

    Args:
        lane: The lane.
        labels: Result of `empty_labels`, to be filled.
        least_s: Least cost of each group on any lane; (N,).
        cutoff_s: Penalty of the incumbent; orders that cannot be part of a better plan are dropped.
        steps_max: Scenario steps after which to give up.

    Returns:
        False if steps or memory for labels ran out.
    """
    groups = len(lane.model)
    tiers = lane.tier.copy()
    for mask in range(1, 1 << groups):
        if not _possible(lane, mask):
            continue
        rest_s = 0.0
        for g in range(groups):
            if not mask >> g & 1:
                rest_s += least_s[g]
        for g in range(groups):
            if not _may_end(lane, mask, g):
                continue
            _tiers_before(lane, mask & ~(1 << g), tiers)
            if not _end_with(lane, labels, mask, g, tiers, cutoff_s - rest_s, steps_max):
                return False
        _keep_best(labels, mask)
    return True


@compiled()
def _possible(lane: Lane, mask: int) -> bool:
    """Return True if all groups of the set run here, and of equal groups the first are in it."""
    for g in range(len(lane.model)):
        if mask >> g & 1 and not lane.runs[g]:
            return False
        if mask >> g & 1 and lane.before[g] >= 0 and not mask >> lane.before[g] & 1:
            return False
    return True


@compiled()
def _may_end(lane: Lane, mask: int, group: int) -> bool:
    """Return True if the group can be the last of the set, by priorities and the order of equal groups."""
    if not mask >> group & 1:
        return False
    for g in range(len(lane.model)):
        if mask >> g & 1 and (lane.priority[g] > lane.priority[group] or lane.before[g] == group):
            return False
    return True


@compiled()
def _tiers_before(lane: Lane, mask: int, tiers: Ints) -> None:
    """Write the tiers of all models behind a set of groups, if none is evicted."""
    for m in range(len(tiers)):
        tiers[m] = lane.tier[m]
    if lane.loaded >= 0:
        tiers[lane.loaded] = lane.sleeps_in[lane.loaded]
    for g in range(len(lane.model)):
        if mask >> g & 1:
            tiers[lane.model[g]] = lane.sleeps_in[lane.model[g]]


@compiled()
def _recall(lane: Lane, labels: Labels, label: int) -> None:
    """Begin the last row of what sleeps with that of a label; -1 for the one at first."""
    scratch = labels.asleep.shape[1] - 1
    if lane.evicts and label < 0:
        copy_row(lane.asleep, 0, 0, labels.asleep, 0, scratch)
    elif lane.evicts:
        copy_row(labels.asleep, 0, label, labels.asleep, 0, scratch)


@compiled()
def _swap_after(lane: Lane, labels: Labels, loaded: int, model: int, tiers: Ints) -> float:
    """Return the time of a swap, 0 to the same model, and change the last row of what sleeps."""
    if loaded == model:
        return 0.0
    if not lane.evicts:
        return float(swap_s(lane, loaded, model, tiers[model]))
    scratch = labels.asleep.shape[1] - 1
    tier = tier_of(labels.asleep, 0, scratch, model)
    swap_models(lane.memory, labels.asleep, 0, scratch, 0, loaded, model)
    return float(swap_s(lane, loaded, model, tier))


@compiled()
def _rank(lane: Lane, mask: int, group: int) -> int:
    """Return the number of groups of the set that are alike in time."""
    rank = 0
    for g in range(len(lane.model)):
        if mask >> g & 1 and lane.time_class[g] == lane.time_class[group]:
            rank += 1
    return rank


@compiled()
def _end_with(
    lane: Lane, labels: Labels, mask: int, group: int, tiers: Ints, cutoff_s: float, steps_max: int
) -> bool:
    """Extend all labels of the set without the group by the group."""
    rest, model = mask & ~(1 << group), lane.model[group]
    rank = _rank(lane, rest, group)
    start_s = lane.busy_s.copy()
    if rest == 0:
        _recall(lane, labels, -1)
        delay(lane, start_s, _swap_after(lane, labels, lane.loaded, model, tiers))
        if lane.loaded != model:
            delay(lane, start_s, lane.leave_s)
        return _add(lane, labels, mask, group, rank, start_s, 0.0, -1, cutoff_s)
    for before in range(len(lane.model)):
        if labels.head[rest, before] < 0:
            continue
        delay_s = np.zeros(len(lane.busy_s))
        if lane.model[before] != model:
            add_time(delay_s, lane.tail_s, lane.time_class[before], _rank(lane, rest, before) - 1)
        label = labels.head[rest, before]
        while label >= 0:
            for k in range(len(start_s)):
                start_s[k] = labels.end_s[label, k] + delay_s[k]
            _recall(lane, labels, label)
            delay(lane, start_s, _swap_after(lane, labels, lane.model[before], model, tiers))
            if labels.used[1] > steps_max or not _add(
                lane, labels, mask, group, rank, start_s, labels.cost_s[label], label, cutoff_s
            ):
                return False
            label = labels.next[label]
    return True


@compiled()
def _add(
    lane: Lane,
    labels: Labels,
    mask: int,
    group: int,
    rank: int,
    start_s: Floats,
    spent_s: float,
    parent: int,
    cutoff_s: float,
) -> bool:
    """Add a label unless it is dominated, and drop those that it dominates; False if memory ran out."""
    labels.used[1] += len(start_s) if lane.sampled else _normal_steps(lane, group)
    cost_s = spent_s + lane.price_s[group] + group_penalty(lane, group, rank, start_s)
    if cost_s > cutoff_s:
        return True
    end_s = labels.end_s[-1]
    for k in range(len(start_s)):
        end_s[k] = start_s[k] + lane.service_s[lane.time_class[group], rank, k]
    at, previous = labels.head[mask, group], -1
    while at >= 0:
        labels.used[1] += COMPARE_STEPS
        alike = not lane.evicts or equal_rows(labels.asleep, 0, at, labels.asleep.shape[1] - 1)
        if alike and labels.cost_s[at] <= cost_s + SLACK and _no_later(lane, labels.end_s[at], end_s):
            return True
        if alike and cost_s <= labels.cost_s[at] + SLACK and _no_later(lane, end_s, labels.end_s[at]):
            if previous < 0:
                labels.head[mask, group] = labels.next[at]
            else:
                labels.next[previous] = labels.next[at]
        else:
            previous = at
        at = labels.next[at]
    new = labels.used[0]
    if new == len(labels.cost_s):
        return False
    labels.used[0] += 1
    labels.cost_s[new] = cost_s
    for k in range(len(start_s)):
        labels.end_s[new, k] = end_s[k]
    labels.parent[new], labels.last[new] = parent, group
    _remember(lane, labels, new)
    labels.next[new], labels.head[mask, group] = labels.head[mask, group], new
    return True


@compiled()
def _remember(lane: Lane, labels: Labels, label: int) -> None:
    """Keep the last row of what sleeps for a label."""
    if lane.evicts:
        copy_row(labels.asleep, 0, labels.asleep.shape[1] - 1, labels.asleep, 0, label)


@compiled()
def _normal_steps(lane: Lane, group: int) -> int:
    """Return the work of an expected penalty, in scenario steps."""
    return COMPARE_STEPS * int(min(lane.requests[group], REQUEST_BLOCKS_MAX))


@compiled()
def _no_later(lane: Lane, one_s: Floats, other_s: Floats) -> bool:
    if not lane.sampled:  # a miss may be likelier or not when the variance is larger
        for k in range(1, len(one_s)):
            if abs(one_s[k] - other_s[k]) > SLACK * (1.0 + other_s[k]):
                return False
        return bool(one_s[0] <= other_s[0] + SLACK)
    for k in range(len(one_s)):  # noqa: SIM110 (compiled code has no generator expressions)
        if one_s[k] > other_s[k] + SLACK:
            return False
    return True


@compiled()
def _keep_best(labels: Labels, mask: int) -> None:
    best = -1
    for g in range(labels.head.shape[1]):
        at = labels.head[mask, g]
        while at >= 0:
            if best < 0 or labels.cost_s[at] < labels.cost_s[best]:
                best = at
            at = labels.next[at]
    labels.best[mask] = best
