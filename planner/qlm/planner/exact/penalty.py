"""Penalty of a group that starts at given times, and the timing of queues, in compiled code; seconds."""

import math
from typing import Final

from qlm.planner.arrays import Floats
from qlm.planner.compiling.compiled import compiled
from qlm.planner.exact.lanes import Lane
from qlm.planner.exact.limits import REQUEST_BLOCKS_MAX
from qlm.planner.limits import ON_TIME_S

SURE: Final = 8.3
"""Standard deviations beyond which a probability is 0 or 1 to the spacing of numbers at 1."""

_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY_0: Final = 1.0 / math.sqrt(2.0 * math.pi)


@compiled()
def group_penalty(lane: Lane, group: int, rank: int, start_s: Floats) -> float:
    """Return the mean penalty of a group.

    Args:
        lane: Lane that serves it.
        group: Index of the group.
        rank: Number of groups alike in time that the queue served before it.
        start_s: Start; (K,).
    """
    if lane.deadline_s[group] == math.inf:
        return 0.0
    cost_s = _weighed(lane, group, rank, start_s, 0.0, lane.miss_weight_s)
    return promised_penalty(lane, group, rank, start_s, 0.0, cost_s)


@compiled()
def promised_penalty(
    lane: Lane, group: int, rank: int, start_s: Floats, var_most: float, cost_s: float
) -> float:
    """Return the penalty with that of a broken promise; `cost_s` is the one without.

    With m misses of which a are allowed, L + w m + p max(0, m - a) = max(L + w m, L + (w + p) m - p a).
    """
    allowed, price_s = lane.allowed[group], lane.promise_s
    if price_s <= 0.0 or allowed >= lane.requests[group]:
        return cost_s
    weight_s = lane.miss_weight_s + price_s
    promised_s = _weighed(lane, group, rank, start_s, var_most, weight_s) - price_s * allowed
    return float(max(cost_s, promised_s))


@compiled()
def _weighed(
    lane: Lane, group: int, rank: int, start_s: Floats, var_most: float, miss_weight_s: float
) -> float:
    if not lane.sampled:
        return normal_penalty(lane, group, rank, start_s, var_most, miss_weight_s)
    service_s, tail_s = (
        lane.service_s[lane.time_class[group], rank],
        lane.tail_s[lane.time_class[group], rank],
    )
    total = 0.0
    for k in range(len(start_s)):
        first_s = start_s[k] + tail_s[k] - lane.deadline_s[group]
        if lane.paper:
            total += first_s + service_s[k]
        else:
            step_s = service_s[k] / lane.requests[group]
            total += _certain(first_s, step_s, lane.requests[group], miss_weight_s)
    return total / len(start_s)


@compiled()
def _certain(first_s: float, step_s: float, requests: float, miss_weight_s: float) -> float:
    """Return the penalty of requests r = 1..n that end `first_s + r step_s` after their deadline."""
    low, high = 1.0, requests
    if step_s > 0.0:
        low = math.floor(_within((ON_TIME_S - first_s) / step_s, 0.0, requests)) + 1.0
    elif step_s < 0.0:
        high = math.ceil(_within((first_s - ON_TIME_S) / -step_s, 1.0, requests + 1.0)) - 1.0
    elif first_s <= ON_TIME_S:
        high = 0.0
    return _surely_late(first_s, step_s, low, high, miss_weight_s)


@compiled()
def _within(number: float, least: float, most: float) -> float:
    """Return the nearest number between two others, which fits the 64 bits that compiled code rounds to.

    The time to a distant deadline over that between two requests may not.
    """
    return float(min(max(number, least), most))


@compiled()
def _surely_late(first_s: float, step_s: float, low: float, high: float, miss_weight_s: float) -> float:
    """Return the penalty of requests r = low..high, all late."""
    late = max(high - low + 1.0, 0.0)
    return late * (first_s + miss_weight_s) + step_s * 0.5 * (low + high) * late


@compiled()
def normal_penalty(
    lane: Lane, group: int, rank: int, start_s: Floats, var_most: float, miss_weight_s: float
) -> float:
    """Return the expected penalty of a group under the normal model, or a lower bound of it.

    Requests that are surely late are summed at once. Of uncertain ones, at most `REQUEST_BLOCKS_MAX` are
    evaluated, each for an equal number of neighbours.

    Args:
        lane: Lane that serves it.
        group: Index of a group with a deadline.
        rank: Number of groups alike in time that the queue served before it.
        start_s: Mean, own variance and shared standard deviations of its start.
        var_most: 0; for a lower bound over all starts that are no earlier, the largest variance of an end.
            (Expected lateness grows with the variance, the chance of a miss grows or falls.)
        miss_weight_s: Price of a miss.
    """
    service_s, tail_s = (
        lane.service_s[lane.time_class[group], rank],
        lane.tail_s[lane.time_class[group], rank],
    )
    requests = lane.requests[group]
    first_s = start_s[0] + tail_s[0] - lane.deadline_s[group]
    step_s = service_s[0] / requests
    # The variance of an end is base_var + share (cross_var + share service_var).
    base_var, cross_var, service_var = start_s[1] + tail_s[1], 0.0, service_s[1]
    for k in range(2, len(start_s)):
        sd_s = start_s[k] + tail_s[k]
        base_var += sd_s * sd_s
        cross_var += 2.0 * sd_s * service_s[k]
        service_var += service_s[k] * service_s[k]
    reach_s = SURE * math.sqrt(max(var_most, base_var + cross_var + service_var))
    if reach_s == 0.0:
        return _certain(first_s, step_s, requests, miss_weight_s)
    low, high = 1.0, requests
    if step_s > 0.0:
        low = float(math.floor(_within((-reach_s - first_s) / step_s, 1.0, requests)))
        high = float(math.ceil(_within((reach_s - first_s) / step_s, 1.0, requests)))
    total = _surely_late(first_s, step_s, high + 1.0, requests, miss_weight_s)
    uncertain = high - low + 1.0
    blocks = min(uncertain, REQUEST_BLOCKS_MAX)
    for block in range(int(blocks)):
        r = low - 0.5 + (block + 0.5) * uncertain / blocks
        share = r / requests
        var = base_var + share * (cross_var + share * service_var)
        mean_s = first_s + r * step_s
        total += uncertain / blocks * _expected(mean_s, var, var_most, miss_weight_s)
    return total


@compiled()
def _expected(mean_s: float, var: float, var_most: float, miss_weight_s: float) -> float:
    """Return E[max(0, X)] + miss_weight_s P(X > 0) for X ~ N(mean_s, var), P at the lower of two values."""
    late_s, missed = max(mean_s, 0.0), 1.0 if mean_s > ON_TIME_S else 0.0
    if var > 0.0:
        z = mean_s / math.sqrt(var)
        missed = 0.5 * math.erfc(-z * _SQRT_HALF)
        late_s = max(mean_s * missed + math.sqrt(var) * _DENSITY_0 * math.exp(-0.5 * z * z), 0.0)
    if var_most > var:
        missed = min(missed, 0.5 * math.erfc(-mean_s / math.sqrt(var_most) * _SQRT_HALF))
    return late_s + miss_weight_s * missed


@compiled()
def delay(lane: Lane, start_s: Floats, seconds: float) -> None:
    """Delay a start by a certain time, in place."""
    for k in range(len(start_s) if lane.sampled else 1):
        start_s[k] += seconds


@compiled()
def add_time(start_s: Floats, times_s: Floats, time_class: int, rank: int) -> None:
    """Delay a start by one of the times of a set of groups, (C, R, K), in place."""
    for k in range(len(start_s)):
        start_s[k] += times_s[time_class, rank, k]


@compiled()
def swap_s(lane: Lane, loaded: int, model: int, tier: int) -> float:
    """Return the time of a swap to a model that sleeps in a tier."""
    unload_s = lane.unload_s[loaded] if loaded >= 0 else 0.0
    return float(unload_s + lane.memory.takes_s[0, model, tier])
