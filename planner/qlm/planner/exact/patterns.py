"""The pattern form: label each lane, choose patterns, read the queues back."""

import math

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.exact.answer import Solution
from qlm.planner.exact.highs import solve_model
from qlm.planner.exact.incumbent import Queues
from qlm.planner.exact.labelling import Labels, empty_labels, label_all
from qlm.planner.exact.lanes import Lanes
from qlm.planner.exact.limits import LABEL_STEPS_PER_S, LABELS_BYTES_MAX, PATTERNS_MAX, PROVEN_GAP
from qlm.planner.exact.master import Patterns, fix_by_reduced_cost, master_model


def solve_by_patterns(
    lanes: Lanes, least_s: Floats, incumbent: Solution, *, time_limit_s: float | None
) -> Solution:
    """Solve a problem in its pattern form.

    Args:
        least_s: Result of `least_costs`.
        incumbent: A known plan; only columns that may improve on it are kept.
        time_limit_s: Limit of the master problem, and as a limit on work, of labelling.

    Returns:
        The best plan and a bound; the incumbent if time, memory or patterns ran out.
    """
    cutoff_s = incumbent.penalty_s + PROVEN_GAP * max(1.0, abs(incumbent.penalty_s))
    steps_max = None if time_limit_s is None else int(time_limit_s * LABEL_STEPS_PER_S)
    labelled = label_lanes(lanes, least_s, cutoff_s, steps_max)
    if labelled is None or sum(int((labels.best >= 0).sum()) for labels in labelled) > PATTERNS_MAX:
        return incumbent
    done_s = sum(int(labels.used[1]) for labels in labelled) / LABEL_STEPS_PER_S
    left_s = None if time_limit_s is None else max(0.0, time_limit_s - done_s)
    unit_s = max(1.0, abs(incumbent.penalty_s))
    patterns, took_s = fix_by_reduced_cost(lanes, all_patterns(labelled, unit_s), cutoff_s, left_s)
    model = master_model(lanes, patterns)
    left_s = None if left_s is None else max(0.0, left_s - took_s)
    outcome = solve_model(model, time_limit_s=left_s)
    bound_s = max(min(outcome.bound_s * unit_s, cutoff_s), incumbent.bound_s)
    if outcome.found:
        used = [p for p in model.patterns for _ in range(round(model.use[p].value))]
        penalty_s = math.fsum(patterns.cost_s[used])
        if penalty_s < incumbent.penalty_s:
            orders = [_order(labelled, patterns, p) for p in used]
            return Solution(queues=_queues(lanes, orders), penalty_s=penalty_s, bound_s=bound_s)
    return Solution(queues=incumbent.queues, penalty_s=incumbent.penalty_s, bound_s=bound_s)


def label_lanes(lanes: Lanes, least_s: Floats, cutoff_s: float, steps_max: int | None) -> list[Labels] | None:
    """Label all lanes; None if a limit on work or memory is reached."""
    scenarios = len(lanes.lanes[0].busy_s)
    left = np.iinfo(np.int64).max if steps_max is None else steps_max
    labelled = []
    for lane in lanes.lanes:
        row_bytes = 2 * lane.asleep.shape[2] if lane.evicts else 0
        labels = empty_labels(lane, LABELS_BYTES_MAX // (8 * (scenarios + 4) + row_bytes))
        if not label_all(lane, labels, least_s, cutoff_s, left):
            return None
        left -= int(labels.used[1])
        labelled.append(labels.kept())
    return labelled


def all_patterns(labelled: list[Labels], unit_s: float = 1.0) -> Patterns:
    """Return the best order of each set of groups on each lane."""
    sets = [np.flatnonzero(labels.best >= 0) for labels in labelled]
    best = [labels.best[masks] for labels, masks in zip(labelled, sets, strict=True)]
    return Patterns(
        lane=np.repeat(np.arange(len(sets)), [len(masks) for masks in sets]),
        groups=np.concatenate(sets),
        cost_s=np.concatenate([labels.cost_s[at] for labels, at in zip(labelled, best, strict=True)]),
        label=np.concatenate(best),
        unit_s=unit_s,
    )


def _order(labelled: list[Labels], patterns: Patterns, p: int) -> tuple[int, list[int]]:
    """Return a pattern's lane, and its groups in their best order."""
    lane, at = int(patterns.lane[p]), int(patterns.label[p])
    order: list[int] = []
    while at >= 0:
        order.append(int(labelled[lane].last[at]))
        at = int(labelled[lane].parent[at])
    return lane, order[::-1]


def _queues(lanes: Lanes, orders: list[tuple[int, list[int]]]) -> Queues:
    """Assign the orders to instances of their lanes, and equal groups in id order to places."""
    left = {members[0]: list(members) for members in lanes.equal}
    first = {g: members[0] for members in lanes.equal for g in members}
    free = [list(same) for same in lanes.instances]
    queues: Queues = [[] for _ in lanes.arrays.instances]
    for lane, order in orders:
        queues[free[lane].pop(0)] = [left[first[g]].pop(0) for g in order]
    return queues
