"""What a group costs when it starts at a given time, in compiled code; seconds throughout."""

import math
from typing import Final

import numpy as np
from numba import njit

from qlm.planner.arrays import Floats
from qlm.planner.limits import ON_TIME_S

CERTAIN_SD: Final = 6.5
"""So many standard deviations away, a normal probability is 0 or 1 to ten digits."""

EXACT_REQUESTS_MAX: Final = 4
"""Groups of up to so many requests are summed up; larger ones are integrated."""

TOGETHER: Final = 1e-3
"""Requests that leave within this share of the standard deviation count as ending together."""

CERTAIN: Final = 1e-4
"""A standard deviation below this share of the drain counts as none."""

STEADY: Final = 0.05
"""If the variance of the drain over the product of drain and standard deviation of all else is at most this,
it counts as one for all requests: wrong by up to 0.4 % of what it costs to miss all."""

WILD: Final = 0.4
"""If it is more than this, a group is cut into parts with standard deviations of their own."""

PARTS: Final = 16
"""So many."""

NARROW: Final = 0.1
"""A drain whose standard deviation is at most this share of it leaves few requests in doubt."""

SHORT_S: Final = 1e-9
"""A shorter drain counts as none: differences of integrals have no digits left."""

LEAST_DRAIN: Final = 0.1
"""A drain is reckoned with at least so much of its mean."""

_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY_0: Final = 1.0 / math.sqrt(2.0 * math.pi)

_CELLS_PER_SD: Final = 16
_CELLS: Final = 2 * int(CERTAIN_SD * _CELLS_PER_SD)
_ZERO_AT: Final = CERTAIN_SD * _CELLS_PER_SD
_CELLS_MASK: Final = 255
"""Tells the compiler that a cell is not negative."""


def _integrals_table() -> Floats:
    """Cubics for z Phi + phi and ((z^2 + 1) Phi + z phi) / 2, with the right values and slopes at cell edges.

    Both are right to 2e-8: the fourth derivative is below 1, and h^4 / 384 = 4e-8. The first cell is that
    of no lateness (0), the last that of certain lateness (z, (z^2 + 1) / 2); they hold beyond the table, too.

    Returns:
        Coefficients from the constant on, four each, in the cell's own unit; (cells, 8).
    """
    step = 1.0 / _CELLS_PER_SD
    table = np.zeros((_CELLS, 8))
    for cell in range(1, _CELLS - 1):
        ends = [_integrals(-CERTAIN_SD + (cell + at) * step) for at in (0, 1)]
        for column in (0, 1):
            (slope_0, value_0), (slope_1, value_1) = (end[column : column + 2] for end in ends)
            rise, d0, d1 = value_1 - value_0, slope_0 * step, slope_1 * step
            table[cell, 4 * column : 4 * column + 4] = value_0, d0, 3 * rise - 2 * d0 - d1, d0 + d1 - 2 * rise
    last = CERTAIN_SD - step
    table[-1] = last, step, 0.0, 0.0, 0.5 * (last * last + 1.0), last * step, 0.5 * step * step, 0.0
    return table


def _integrals(z: float) -> tuple[float, float, float]:
    """Phi, its integral, and the integral of that."""
    below = 0.5 * math.erfc(-z * _SQRT_HALF)
    density = _DENSITY_0 * math.exp(-0.5 * z * z)
    return below, z * below + density, 0.5 * ((z * z + 1.0) * below + z * density)


_INTEGRALS: Final = _integrals_table()


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


@njit(cache=True, nogil=True)
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
    half_s: float,
    per_drain: float,
) -> float:
    """Penalty of a group in constant time; arguments as in `summed_penalty`, and two that save divisions.

    The sum over the requests r is n times the integral over their share x of the group from 1/2n to
    1 + 1/2n (midpoint rule), with the standard deviation of the request whose mean completion is its
    deadline, or the nearest to that. Then, with u = mean lateness, z = u / sd, Phi and phi the normal
    distribution and density: the integral of Phi(z) du is sd (z Phi + phi), that of E[max(0, X)] du is
    sd^2 ((z^2 + 1) Phi + z phi) / 2.

    The midpoint rule is wrong by up to 0.04 of a miss where that standard deviation is half the time between
    two requests, and by less where it is more. Where it is less, requests near the deadline are summed up.

    Args:
        requests: See there, like the next six.
        late_s: Start plus tail minus deadline, mean.
        var: Variance of the start.
        drain_s: Of the group, mean.
        drain_var: Its variance.
        tail_var: Variance of the tail.
        miss_weight_s: Price of a miss.
        half_s: Half a request's drain: drain_s / 2n.
        per_drain: 1 / drain_s; 0 for groups that are not to be integrated.
    """
    from_s = late_s + half_s
    to_s = from_s + drain_s
    fixed_var = var + tail_var
    if to_s <= 0.0 and to_s * to_s >= CERTAIN_SD * CERTAIN_SD * (fixed_var + drain_var):
        return 0.0
    share = min(1.0, max(0.0, -late_s * per_drain))
    sd_var = fixed_var + share * share * drain_var
    if (
        per_drain <= 0.0
        or per_drain > 1.0 / SHORT_S
        or drain_var * drain_var > STEADY * STEADY * drain_s * drain_s * fixed_var
        or drain_s * drain_s <= TOGETHER * TOGETHER * fixed_var
        or sd_var <= half_s * half_s
        or sd_var <= CERTAIN * CERTAIN * drain_s * drain_s
    ):
        return special_penalty(requests, late_s, var, drain_s, drain_var, tail_var, miss_weight_s)
    return requests * per_drain * part_penalty(from_s, to_s, math.sqrt(sd_var), miss_weight_s)


@njit(cache=True, nogil=True, inline="always")
def part_penalty(from_s: float, to_s: float, sd: float, miss_weight_s: float) -> float:
    """Integral of the penalty over mean lateness, with one positive standard deviation."""
    per_cell = _CELLS_PER_SD / sd
    begin, end = from_s * per_cell + _ZERO_AT, to_s * per_cell + _ZERO_AT
    first = int(min(_CELLS - 1.0, max(0.0, begin))) & _CELLS_MASK
    last = int(min(_CELLS - 1.0, max(0.0, end))) & _CELLS_MASK
    begin -= first
    end -= last
    t = _INTEGRALS
    missed = t[last, 0] + end * (t[last, 1] + end * (t[last, 2] + end * t[last, 3]))
    missed -= t[first, 0] + begin * (t[first, 1] + begin * (t[first, 2] + begin * t[first, 3]))
    late = t[last, 4] + end * (t[last, 5] + end * (t[last, 6] + end * t[last, 7]))
    late -= t[first, 4] + begin * (t[first, 5] + begin * (t[first, 6] + begin * t[first, 7]))
    return float(sd * (miss_weight_s * missed + sd * late))


@njit(cache=True, nogil=True)
def special_penalty(
    requests: float,
    late_s: float,
    var: float,
    drain_s: float,
    drain_var: float,
    tail_var: float,
    miss_weight_s: float,
) -> float:
    """Penalty of a group that is small, nearly certain, ends at once, or has a very uncertain drain.

    The last is the mean over three drains, by Gauss-Hermite quadrature: for a known drain, the standard
    deviation is the same for all requests. A group that is on time but for rare drains, which three do not
    show, is cut into parts instead.
    """
    if requests <= EXACT_REQUESTS_MAX:
        return summed_penalty(requests, late_s, var, drain_s, drain_var, tail_var, miss_weight_s)
    fixed_var = var + tail_var
    if fixed_var + drain_var <= 0.0:
        return _certain_penalty(requests, late_s, drain_s, miss_weight_s)
    if drain_s <= TOGETHER * math.sqrt(fixed_var) or drain_s <= SHORT_S:
        middle_s = late_s + 0.5 * drain_s * (1.0 + 1.0 / requests)
        return requests * request_penalty(middle_s, fixed_var + 0.34 * drain_var, miss_weight_s)
    share, half_s = min(1.0, max(0.0, -late_s / drain_s)), 0.5 * drain_s / requests
    narrow = drain_var <= NARROW * NARROW * drain_s * drain_s
    if narrow and fixed_var + share * share * drain_var <= half_s * half_s:
        return _stepped_penalty(requests, late_s, fixed_var, drain_s, drain_var, miss_weight_s)
    if late_s + drain_s <= 0.0 or drain_var > WILD * drain_s * math.sqrt(fixed_var):
        return _parted_penalty(requests, late_s, fixed_var, drain_s, drain_var, miss_weight_s)
    sd, spread_s = math.sqrt(fixed_var), math.sqrt(3.0 * drain_var)
    cost = 0.0
    for node in range(-1, 2):
        weight = 2.0 / 3.0 if node == 0 else 1.0 / 6.0
        span_s = max(LEAST_DRAIN * drain_s, drain_s + node * spread_s)
        from_s = late_s + 0.5 * span_s / requests
        cost += weight / span_s * _whole_penalty(from_s, from_s + span_s, sd, miss_weight_s)
    return requests * cost


@njit(cache=True, nogil=True, inline="always")
def _stepped_penalty(
    requests: float, late_s: float, fixed_var: float, drain_s: float, drain_var: float, miss_weight_s: float
) -> float:
    """Penalty where the time between requests is more than their standard deviation.

    Those near the deadline, some dozen at most, are summed up; the others are surely on time or surely late.
    """
    step_s = drain_s / requests
    on_time = math.floor(min(requests, max(0.0, -late_s / step_s)))
    cost, late = 0.0, on_time + 1.0
    for way in (-1.0, 1.0):
        r = on_time if way < 0.0 else late
        while 1.0 <= r <= requests:
            share, mean_s = r / requests, late_s + r * step_s
            var = fixed_var + share * share * drain_var
            if mean_s * mean_s >= CERTAIN_SD * CERTAIN_SD * var:
                break
            cost += request_penalty(mean_s, var, miss_weight_s)
            r += way
        late = max(late, r)
    missed = requests - late + 1.0
    return cost + missed * (late_s + step_s * 0.5 * (late + requests) + miss_weight_s)


@njit(cache=True, nogil=True, inline="always")
def _parted_penalty(
    requests: float, late_s: float, fixed_var: float, drain_s: float, drain_var: float, miss_weight_s: float
) -> float:
    begin, cost = 0.5 / requests, 0.0
    for _part in range(PARTS):
        end = begin + 1.0 / PARTS
        share = min(end, max(begin, -late_s / drain_s))
        sd = math.sqrt(fixed_var + share * share * drain_var)
        cost += _whole_penalty(late_s + begin * drain_s, late_s + end * drain_s, sd, miss_weight_s)
        begin = end
    return requests / drain_s * cost


@njit(cache=True, nogil=True, inline="always")
def _whole_penalty(from_s: float, to_s: float, sd: float, miss_weight_s: float) -> float:
    """As `part_penalty`, but the standard deviation may be 0."""
    if sd > CERTAIN * (to_s - from_s):
        return part_penalty(from_s, to_s, sd, miss_weight_s)
    first_s = max(0.0, from_s)
    return max(0.0, to_s - first_s) * (0.5 * (first_s + to_s) + miss_weight_s)


@njit(cache=True, nogil=True, inline="always")
def _certain_penalty(requests: float, late_s: float, drain_s: float, miss_weight_s: float) -> float:
    """Penalty without any variance: request r ends late_s + (r/n) drain_s after the deadline."""
    if drain_s <= 0.0:
        return requests * request_penalty(late_s, 0.0, miss_weight_s)
    step_s = drain_s / requests
    on_time = math.floor(min(requests, max(0.0, (ON_TIME_S - late_s) / step_s * (1.0 + 1e-12))))
    missed = requests - on_time
    return missed * (late_s + step_s * 0.5 * (on_time + 1.0 + requests) + miss_weight_s)
