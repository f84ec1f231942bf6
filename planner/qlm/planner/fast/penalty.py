"""What a group costs when it starts at a given time, in compiled code; seconds throughout."""

import math
from typing import Final

from numba import njit

from qlm.planner.limits import ON_TIME_S

CERTAIN_SD: Final = 6.5
"""So many standard deviations away, a normal probability is 0 or 1 to ten digits."""

EXACT_REQUESTS_MAX: Final = 4
"""Groups of up to so many requests are summed up; larger ones are integrated."""

TOGETHER: Final = 1e-3
"""Requests that leave within this share of the standard deviation count as ending together."""

ONE_PART: Final = 0.1
"""With a smaller share of the other variances, that of the drain counts as one for all requests."""

PARTS: Final = 6
"""Otherwise the group is cut into so many parts, each with a standard deviation of its own."""

_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY_0: Final = 1.0 / math.sqrt(2.0 * math.pi)


@njit(cache=True, nogil=True, inline="always")
def _below(z: float) -> float:
    """Standard normal distribution function."""
    return 0.5 * math.erfc(-z * _SQRT_HALF)


@njit(cache=True, nogil=True, inline="always")
def request_penalty(late_s: float, var: float, miss_weight_s: float) -> float:
    """Penalty of one request: E[max(0, X)] + miss_weight_s P(X > 0) for X ~ N(late_s, var)."""
    if var <= 0.0:
        return late_s + miss_weight_s if late_s > ON_TIME_S else 0.0
    sd = math.sqrt(var)
    z = late_s / sd
    above = _below(z)
    return late_s * above + sd * _DENSITY_0 * math.exp(-0.5 * z * z) + miss_weight_s * above


@njit(cache=True, nogil=True, inline="always")
def summed_penalty(
    requests: float,
    late_s: float,
    var: float,
    drain_s: float,
    drain_var: float,
    tail_var: float,
    miss_weight_s: float,
) -> float:
    """Penalty of a group, request by request.

    Args:
        requests: In the group (n).
        late_s: Start plus tail minus deadline, mean.
        var: Variance of the start.
        drain_s: Of the group, mean.
        drain_var: Its variance.
        tail_var: Variance of the tail.
        miss_weight_s: Price of a miss.
    """
    last_s, most_var = late_s + drain_s, var + drain_var + tail_var
    if last_s < 0.0 and last_s * last_s > 75.0 * most_var:  # 8.7 standard deviations: below 1e-18 each
        return 0.0
    total = 0.0
    for r in range(1, int(requests) + 1):
        share = r / requests
        mean = late_s + share * drain_s
        total += request_penalty(mean, var + share * share * drain_var + tail_var, miss_weight_s)
    return total


@njit(cache=True, nogil=True, inline="always")
def group_penalty(
    requests: float,
    late_s: float,
    var: float,
    drain_s: float,
    drain_var: float,
    tail_var: float,
    miss_weight_s: float,
) -> float:
    """Penalty of a group in constant time; arguments as in `summed_penalty`.

    The sum over the requests r is n times the integral over their share x of the group from 1/2n to
    1 + 1/2n (midpoint rule), with the standard deviation of the request whose mean completion is its
    deadline, or the nearest to that. Then, with u = mean lateness, z = u / sd, Phi and phi the normal
    distribution and density: the integral of Phi(z) du is sd (z Phi + phi), that of E[max(0, X)] du is
    sd^2 ((z^2 + 1) Phi + z phi) / 2.
    """
    first_s = late_s + drain_s / requests
    last_s = late_s + drain_s
    most_var = var + drain_var + tail_var
    if last_s <= 0.0 and last_s * last_s >= CERTAIN_SD * CERTAIN_SD * most_var:
        return 0.0
    if first_s >= 0.0 and first_s * first_s >= CERTAIN_SD * CERTAIN_SD * most_var and first_s > ON_TIME_S:
        return requests * (0.5 * (first_s + last_s) + miss_weight_s)
    if requests <= EXACT_REQUESTS_MAX:
        return summed_penalty(requests, late_s, var, drain_s, drain_var, tail_var, miss_weight_s)
    fixed_var = var + tail_var
    if most_var <= 0.0:
        return _certain_penalty(requests, late_s, drain_s, miss_weight_s)
    if drain_s <= TOGETHER * math.sqrt(fixed_var):
        middle_s = late_s + 0.5 * drain_s * (1.0 + 1.0 / requests)
        return requests * request_penalty(middle_s, fixed_var + 0.34 * drain_var, miss_weight_s)
    parts = 1 if drain_var <= ONE_PART * fixed_var else PARTS
    begin = 0.5 / requests
    cost = 0.0
    for _part in range(parts):
        end = begin + 1.0 / parts
        share = min(end, max(begin, -late_s / drain_s))
        sd = math.sqrt(fixed_var + share * share * drain_var)
        cost += _part_penalty(late_s + begin * drain_s, late_s + end * drain_s, sd, miss_weight_s)
        begin = end
    return requests / drain_s * cost


@njit(cache=True, nogil=True, inline="always")
def _part_penalty(from_s: float, to_s: float, sd: float, miss_weight_s: float) -> float:
    """Integral of the penalty over mean lateness, with one standard deviation."""
    if sd <= 1e-9 * (to_s - from_s):
        first_s = max(0.0, from_s)
        return max(0.0, to_s - first_s) * (0.5 * (first_s + to_s) + miss_weight_s)
    begin, end = from_s / sd, to_s / sd
    below_begin, below_end = _below(begin), _below(end)
    density_begin = _DENSITY_0 * math.exp(-0.5 * begin * begin)
    density_end = _DENSITY_0 * math.exp(-0.5 * end * end)
    missed = (end * below_end + density_end) - (begin * below_begin + density_begin)
    late = 0.5 * (
        ((end * end + 1.0) * below_end + end * density_end)
        - ((begin * begin + 1.0) * below_begin + begin * density_begin)
    )
    return sd * (miss_weight_s * missed + sd * late)


@njit(cache=True, nogil=True, inline="always")
def _certain_penalty(requests: float, late_s: float, drain_s: float, miss_weight_s: float) -> float:
    """Penalty without any variance: request r ends late_s + (r/n) drain_s after the deadline."""
    if drain_s <= 0.0:
        return requests * request_penalty(late_s, 0.0, miss_weight_s)
    step_s = drain_s / requests
    on_time = math.floor(min(requests, max(0.0, (ON_TIME_S - late_s) / step_s * (1.0 + 1e-12))))
    missed = requests - on_time
    return missed * (late_s + step_s * 0.5 * (on_time + 1.0 + requests) + miss_weight_s)
