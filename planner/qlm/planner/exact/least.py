"""Combinatorial lower bound on the cost of each group in any plan."""

import numpy as np

from qlm.planner.arrays import COLD, Floats
from qlm.planner.exact.lanes import Lane, Lanes
from qlm.planner.exact.penalty import delay, group_penalty, normal_penalty, promised_penalty, swap_s


def least_costs(lanes: Lanes) -> Floats:
    """Return the least cost of each group on any lane in any rank, seconds; (N,)."""
    least_s = np.full(len(lanes.groups), np.inf)
    for lane in lanes.lanes:
        for group in np.flatnonzero(lane.runs):
            least_s[group] = min(least_s[group], _on_lane(lane, int(group)))
    return least_s


def _on_lane(lane: Lane, group: int) -> float:
    ranks = int((lane.time_class == lane.time_class[group]).sum())
    costs = [least_penalty(lane, group, rank, earliest_start(lane, group, rank)) for rank in range(ranks)]
    return min(costs) + float(lane.price_s[group])


def least_penalty(lane: Lane, group: int, rank: int, earliest_s: Floats) -> float:
    """Return a lower bound on a group's cost, given its earliest start and, if normal, least variance."""
    if lane.sampled or lane.deadline_s[group] == np.inf:
        return float(group_penalty(lane, group, rank, earliest_s))
    # All groups on one queue: of shared errors, standard deviations add up.
    sums = lane.busy_s + (lane.service_s + lane.tail_s).sum(axis=(0, 1))
    var_most = float(sums[1] + (sums[2:] ** 2).sum())
    cost_s = normal_penalty(lane, group, rank, earliest_s, var_most, lane.miss_weight_s)
    return float(promised_penalty(lane, group, rank, earliest_s, var_most, cost_s))


def earliest_start(lane: Lane, group: int, rank: int) -> Floats:
    """Return a lower bound on the start of a group in any plan, in each scenario; (K,).

    Its model must have been loaded, and the groups alike in time that have a lower rank are served before.
    Draws of a wide normal may be negative: all those of other groups count.
    """
    time_class = lane.time_class[group]
    service_s = lane.service_s.copy()
    service_s[time_class, rank:] = np.minimum(service_s[time_class, rank:], 0.0)
    others = np.arange(len(service_s)) != time_class
    service_s[others] = np.minimum(service_s[others], 0.0)
    earliest: Floats = (
        lane.busy_s + service_s.sum(axis=(0, 1)) + np.minimum(lane.tail_s, 0.0).sum(axis=(0, 1))
    )
    model = int(lane.model[group])
    if model != lane.loaded:
        # Its first swap is from its present tier, or from none if it was evicted.
        tiers = (int(lane.tier[model]), COLD)
        earliest = earliest.copy()
        delay(lane, earliest, min(swap_s(lane, lane.loaded, model, tier) for tier in tiers))
    return earliest
