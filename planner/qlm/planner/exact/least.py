"""What a group costs at least, whatever the plan: a combinatorial lower bound per group."""

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.exact.lanes import Lane, Lanes
from qlm.planner.exact.penalty import delay, group_penalty, normal_penalty, swap_s


def least_costs(lanes: Lanes) -> Floats:
    """Least cost of each group on any lane in any rank, seconds; (N,)."""
    least_s = np.full(len(lanes.groups), np.inf)
    for lane in lanes.lanes:
        for group in np.flatnonzero(lane.runs):
            least_s[group] = min(least_s[group], _on_lane(lane, int(group)))
    return least_s


def _on_lane(lane: Lane, group: int) -> float:
    ranks = int((lane.alike == lane.alike[group]).sum())
    costs = [least_penalty(lane, group, rank, earliest_start(lane, group, rank)) for rank in range(ranks)]
    return min(costs) + float(lane.price_s[group])


def least_penalty(lane: Lane, group: int, rank: int, earliest_s: Floats) -> float:
    """What a group costs at least if it starts no earlier and, under the normal model, no more certainly."""
    if lane.sampled or lane.deadline_s[group] == np.inf:
        return float(group_penalty(lane, group, rank, earliest_s))
    var_most = lane.busy_s[1] + lane.drain_s[:, :, 1].sum() + lane.tail_s[:, :, 1].sum()
    return float(normal_penalty(lane, group, rank, earliest_s, max(float(var_most), float(earliest_s[1]))))


def earliest_start(lane: Lane, group: int, rank: int) -> Floats:
    """Before which no plan starts a group, in each scenario; (K,).

    Its model must have been loaded, and the groups alike in time that have a lower rank are served before.
    Draws of a wide normal may be negative: all those of other groups count.
    """
    alike = lane.alike[group]
    drain_s = lane.drain_s.copy()
    drain_s[alike, rank:] = np.minimum(drain_s[alike, rank:], 0.0)
    others = np.arange(len(drain_s)) != alike
    drain_s[others] = np.minimum(drain_s[others], 0.0)
    earliest: Floats = lane.busy_s + drain_s.sum(axis=(0, 1)) + np.minimum(lane.tail_s, 0.0).sum(axis=(0, 1))
    model = int(lane.model[group])
    if model != lane.loaded:
        earliest = earliest.copy()
        delay(lane, earliest, swap_s(lane, lane.loaded, model, lane.warm))
    return earliest
