"""Least penalty of a group by its mean start, in compiled code; seconds and seconds squared.

The variance of a start is only known to be between two values. See docs/planner-bound.md.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from qlm.planner.arrays import Bools, Floats, Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.limits import ON_TIME_S

ROUNDING: Final = 1e-9
"""Completions count as earlier by this share of their summands, so that rounding does not charge for a
deadline met to the last digit."""

THIN: Final = 1e-6
"""A service time below this share of the lateness counts as none: differences of integrals lose digits."""

FAR: Final = 9.0
"""Standard deviations beyond which the tail of a normal distribution is below the last digit of 1."""

_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY: Final = 1 / math.sqrt(2 * math.pi)


class Charges(NamedTuple):
    """Parameters of the penalty of group g on lane type k.

    Attributes:
        runs: Groups that run there; (K, G).
        first_s: Earliest mean start; (K, G).
        service_s: Mean service; (K, G).
        tail_s: Mean tail; (K, G).
        low_sd: Least standard deviation of a completion; (K, G).
        own_var: Largest variance that a request adds to that of its group's start; (K, G).
        extra_s: Price of the move there; (K, G).
        busy_s: Least busy time; (K,).
        busy_var: Largest variance of it; (K,).
        total_var: Variance of everything that can precede; (K,).
        prior_s: Lengths of time into which other predecessors fit, rising, then infinite; (K, N).
        prior_slope: Largest variance per second of a predecessor that fits into each of them, rising; (K, N).
        shared_sd: Largest standard deviation that a request adds by shared errors (of class, of speed), with
            all predecessors that take no time; (2, K, G).
        shared_slope: Largest standard deviation per second of a predecessor by each of them; (2, K).
        shared_most: Variance by shared errors of everything together; (K,).
        model: (G,).
        requests: (G,).
        deadline_s: Deadline from now, finite; (G,).
        late_weight: Price of a second late, 1 or 0.
        miss_weight_s: Price of a miss.
        allowed: Misses that the promise of a group allows; (G,).
        promise_s: Price of one more.
    """

    runs: Bools
    first_s: Floats
    service_s: Floats
    tail_s: Floats
    low_sd: Floats
    own_var: Floats
    extra_s: Floats
    busy_s: Floats
    busy_var: Floats
    total_var: Floats
    prior_s: Floats
    prior_slope: Floats
    shared_sd: Floats
    shared_slope: Floats
    shared_most: Floats
    model: Ints
    requests: Floats
    deadline_s: Floats
    late_weight: float
    miss_weight_s: float
    allowed: Floats
    promise_s: float


@compiled()
def normal_terms(x: float, sd: float) -> tuple[float, float, float]:
    """Return, for X ~ N(x, sd^2), P(X > 0), its integral E[max(0, X)] over x, and the integral of that.

    With z = x/sd, Phi and phi the normal distribution and density: P = Phi(z), E = x P + sd phi(z), and
    the last is ((x^2 + sd^2) P + x sd phi(z)) / 2.
    """
    if sd <= 0.0:
        return (1.0, x, 0.5 * x * x) if x > 0.0 else (0.0, 0.0, 0.0)
    z = x / sd
    if z > FAR:
        return 1.0, x, 0.5 * (x * x + sd * sd)
    if z < -FAR:
        return 0.0, 0.0, 0.0
    miss = 0.5 * math.erfc(-z * _SQRT_HALF)
    density = sd * _DENSITY * math.exp(-0.5 * z * z)
    return miss, x * miss + density, 0.5 * ((x * x + sd * sd) * miss + x * density)


@compiled(inline="always")
def least_terms(x: float, low: float, high: float) -> tuple[float, float, float, float]:
    """Return lower bounds for sd between `low` and `high`: P, its integral, E, and the integral of E.

    E rises with sd, P falls with it where x > 0 and rises elsewhere.
    """
    miss, late_s, late_integral = normal_terms(x, low)
    if x <= 0.0:
        return miss, late_s, late_s, late_integral
    miss, integral, _ = normal_terms(x, high)
    return miss, (low - high) * _DENSITY + integral, late_s, late_integral


@compiled(inline="always")
def most_var(c: Charges, k: int, g: int, start_s: float, until_s: float, late_s: float) -> float:
    """Return an upper bound on the variance of group g, late by up to `late_s` on type k from `start_s`.

    The time after the busy time is filled with the predecessor that has the largest variance per second, b,
    among all that are short enough. Behind the last edge the probability of a miss is least for some later
    start, with no more than b late_s / 2; see docs/planner-bound.md.
    """
    last = math.isinf(until_s)
    left_s = (start_s if last else until_s) - c.busy_s[k]
    return own_most(c, k, g, left_s, last, late_s) + shared_most(c, k, g, left_s, last, late_s)


@compiled(inline="always")
def shared_most(c: Charges, k: int, g: int, left_s: float, last: bool, late_s: float) -> float:
    """Return an upper bound on the part by errors that groups share, after `left_s` of predecessors."""
    var = 0.0
    for error in range(2):
        slope = c.shared_slope[error, k]
        sd_s = c.shared_sd[error, k, g] + slope * max(0.0, left_s)
        if last:
            sd_s = max(sd_s, slope * late_s)
        var += sd_s * sd_s
    return float(min(var, c.shared_most[k]))


@compiled(inline="always")
def own_most(c: Charges, k: int, g: int, left_s: float, last: bool, late_s: float) -> float:
    """Return an upper bound on the part by own variances, after `left_s` of predecessors."""
    if last:
        at = np.searchsorted(c.prior_s[k], np.inf, side="left") - 1
    else:
        at = np.searchsorted(c.prior_s[k], left_s, side="right") - 1
    if at < 0:
        return float(c.busy_var[k] + c.own_var[k, g])
    slope, most = c.prior_slope[k, at], c.busy_var[k] + c.total_var[k]
    if math.isinf(slope):
        return float(most + c.own_var[k, g])
    var = min(most, c.busy_var[k] + left_s * slope) + c.own_var[k, g]
    if last:
        var = min(most + c.own_var[k, g], max(var, 0.5 * slope * late_s))
    return float(var)


@compiled(inline="always")
def charge(c: Charges, k: int, g: int, start_s: float, until_s: float) -> float:
    """Return the least penalty, its move included, of a group with a mean start in [`start_s`, `until_s`].

    The requests r = 1..n are charged as the first one, plus the integral of the non-decreasing least penalty
    from the first to the last.
    """
    n, service_s, deadline_s = c.requests[g], c.service_s[k, g], c.deadline_s[g]
    end_s = start_s + service_s + c.tail_s[k, g]
    last = end_s - deadline_s - ON_TIME_S - ROUNDING * (1.0 + end_s + abs(deadline_s))
    span = service_s * (n - 1.0) / n
    first = last - span
    low = c.low_sd[k, g]
    if last < -FAR * low:
        return float(c.extra_s[k, g])
    high = low
    if last > 0.0:
        high = max(low, math.sqrt(most_var(c, k, g, start_s, until_s, last)))
    missed, miss_before, late_s, late_before = least_terms(first, low, high)
    if span <= THIN * (1.0 + abs(first)):
        missed, late_s = n * missed, n * late_s
    else:
        _, miss_until, _, late_until = least_terms(last, low, high)
        missed += max(0.0, miss_until - miss_before) * n / service_s
        late_s += max(0.0, late_until - late_before) * n / service_s
    short = max(0.0, missed - c.allowed[g])
    return float(c.extra_s[k, g] + c.late_weight * late_s + c.miss_weight_s * missed + c.promise_s * short)
