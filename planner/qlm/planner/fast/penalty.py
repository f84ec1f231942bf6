"""Expected penalty of a group that starts at a given time, in compiled code; seconds."""

import math
from typing import Final, NamedTuple

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.compiling.compiled import compiled
from qlm.planner.fast.integrals import CERTAIN_SD, part_penalty, request_penalty
from qlm.planner.limits import ON_TIME_S

EXACT_REQUESTS_MAX: Final = 4
"""Largest group that is summed request by request; larger ones are integrated."""

# Ratios that select the computation for a group, tested in this order. "Other sd" is the standard deviation
# of start and tail together.
# `group_penalty` integrates with one standard deviation for all requests, unless one of these holds:
#   the service time is below `SHORT_S`, or the group is not to be integrated (`EXACT_REQUESTS_MAX`);
#   service variance / (service time * other sd) > COMMON_SD_RATIO;
#   service time / other sd <= INSTANT_SERVICE_RATIO;
#   the standard deviation at the deadline <= half the time between two requests;
#   the standard deviation at the deadline / service time <= NO_VARIANCE_RATIO.
# `special_penalty` then takes the first that applies:
#   at most `EXACT_REQUESTS_MAX` requests: sum them;
#   no variance at all: count the late ones;
#   service time / other sd <= INSTANT_SERVICE_RATIO, or service time <= `SHORT_S`: all requests end together;
#   service sd / service time <= STEPWISE_RATIO, and the standard deviation at the deadline <= half the time
#     between two requests: sum the requests near the deadline;
#   on time by the mean, or service variance / (service time * other sd) > SPLIT_RATIO, or the correlation of
#     service time and start above 1/2: split the group;
#   else: quadrature over three service times.

INSTANT_SERVICE_RATIO: Final = 1e-3
"""Service time over the other sd, up to which all requests of a group count as ending together."""

NO_VARIANCE_RATIO: Final = 1e-4
"""Standard deviation over the service time, up to which the standard deviation counts as zero."""

COMMON_SD_RATIO: Final = 0.05
"""Service variance over the product of service time and other sd, up to which all requests of a group have
the same standard deviation. The error is at most 0.4 % of the cost of missing all."""

SPLIT_RATIO: Final = 0.4
"""The same ratio, above which a group is split into `SPLIT_PARTS` parts with a standard deviation each."""

SPLIT_PARTS: Final = 16

STEPWISE_RATIO: Final = 0.1
"""Standard deviation of the service time over its mean, up to which few requests may be on time or late."""

SHORT_S: Final = 1e-9
"""A shorter service time is not integrated: differences of integrals have no digits left."""

LEAST_SERVICE: Final = 0.1
"""Least node of the quadrature over service times, as a share of the mean."""


class GroupWork(NamedTuple):
    """A group on a kind.

    Attributes:
        requests: Number of requests, n.
        service_s: Mean service time.
        service_var: Its variance.
        tail_var: Variance of the tail.
        half_s: Half the service time of one request, service_s / (2n).
        service_rate: 1 / service_s.
        other_var_from: Least variance of start and tail for which it is integrated; see `integrated`.
        other_var_to: Variance of start and tail from which it is not.
        least_var: Variance at the deadline up to which it is not.
    """

    requests: float
    service_s: float
    service_var: float
    tail_var: float
    half_s: float
    service_rate: float
    other_var_from: float
    other_var_to: float
    least_var: float


def integrated(requests: Floats, service_s: Floats, service_var: Floats) -> tuple[Floats, Floats, Floats]:
    """Return for which variances `group_penalty` integrates groups: the last three fields of `GroupWork`.

    For groups that are never integrated the first is infinite: no variance reaches it.
    """
    can = (service_s > SHORT_S) & (requests > EXACT_REQUESTS_MAX)
    known_s = np.where(can, service_s, 1.0)
    from_var = np.where(can, (service_var / (COMMON_SD_RATIO * known_s)) ** 2, np.inf)
    to_var = (known_s / INSTANT_SERVICE_RATIO) ** 2
    least_var = np.maximum((0.5 * known_s / requests) ** 2, (NO_VARIANCE_RATIO * known_s) ** 2)
    return from_var, to_var, least_var


@compiled()
def summed_penalty(
    requests: float,
    late_s: float,
    var: float,
    service_s: float,
    service_var: float,
    tail_var: float,
    miss_weight_s: float,
    cross_var: float,
) -> float:
    """Return the penalty of a group, summed request by request.

    Args:
        requests: Number of requests, n.
        late_s: Mean of start plus tail minus deadline.
        var: Variance of the start.
        service_s: Mean service time.
        service_var: Its variance.
        tail_var: Variance of the tail.
        miss_weight_s: Price of a miss.
        cross_var: Twice the covariance of the service time with start and tail.
    """
    last_s, most_var = late_s + service_s, var + service_var + tail_var + cross_var
    if last_s < 0.0 and last_s * last_s > 75.0 * most_var:  # 8.7 standard deviations: below 1e-18 each
        return 0.0
    total = 0.0
    for r in range(1, int(requests) + 1):
        share = r / requests
        mean = late_s + share * service_s
        total += request_penalty(
            mean, var + tail_var + share * (cross_var + share * service_var), miss_weight_s
        )
    return total


@compiled(inline="always")
def group_penalty(
    group: GroupWork, late_s: float, var: float, miss_weight_s: float, cross_var: float
) -> float:
    """Return the penalty of a group in constant time.

    The sum over the requests r is n times an integral over the share x = r / n of the group (midpoint rule),
    with x from 1/(2n) to 1 + 1/(2n).

    The standard deviation sd is that of the request whose mean completion is nearest to the deadline. Let u
    be the mean lateness, z = u / sd, Phi and phi the normal distribution and density. Then

        integral of Phi(z) du        = sd (z Phi + phi)
        integral of E[max(0, X)] du  = sd^2 ((z^2 + 1) Phi + z phi) / 2

    The error is at most 0.04 misses when sd equals half the spacing of requests, and falls as sd grows. For a
    smaller sd, requests near the deadline are summed one by one.

    Args:
        group: The group.
        late_s: Mean of start plus tail minus deadline.
        var: Variance of the start.
        miss_weight_s: Price of a miss.
        cross_var: Twice the covariance of the service time with start and tail, by errors that groups share.
    """
    from_s = late_s + group.half_s
    to_s = from_s + group.service_s
    fixed_var = var + group.tail_var
    if to_s <= 0.0:
        whole_var = fixed_var + cross_var + group.service_var
        if to_s * to_s >= CERTAIN_SD * CERTAIN_SD * whole_var:
            return 0.0
    share = min(1.0, max(0.0, -late_s * group.service_rate))
    sd_var = fixed_var + share * (cross_var + share * group.service_var)
    if fixed_var < group.other_var_from or fixed_var >= group.other_var_to or sd_var <= group.least_var:
        return special_penalty(
            group.requests,
            late_s,
            var,
            group.service_s,
            group.service_var,
            group.tail_var,
            miss_weight_s,
            cross_var,
        )
    whole_s = part_penalty(from_s, to_s, math.sqrt(sd_var), miss_weight_s)
    return group.requests * group.service_rate * whole_s


@compiled()
def promised_penalty(
    group: GroupWork,
    late_s: float,
    var: float,
    miss_weight_s: float,
    cross_var: float,
    allowed: float,
    promise_s: float,
) -> float:
    """Return the penalty of a group with more misses than the promise allows, or less than its penalty.

    With m misses of which a are allowed, the penalty of a promise with price p is
    L + w m + p max(0, m - a) = max(L + w m, L + (w + p) m - p a). This is the second of the two.

    Args:
        group: See `group_penalty` for this and the others.
        late_s: Mean of start plus tail minus deadline.
        var: Variance of the start.
        miss_weight_s: Price of a miss.
        cross_var: Twice the covariance of the service time with start and tail.
        allowed: Misses that the promise allows.
        promise_s: Price of a request short of it.
    """
    whole_s = group_penalty(group, late_s, var, miss_weight_s + promise_s, cross_var)
    return float(whole_s - promise_s * allowed)


@compiled()
def special_penalty(
    requests: float,
    late_s: float,
    var: float,
    service_s: float,
    service_var: float,
    tail_var: float,
    miss_weight_s: float,
    cross_var: float,
) -> float:
    """Return the penalty of a small, nearly certain, instantaneous or very uncertain group.

    The comment at the top of the file says which computation applies. The one for very uncertain groups is
    the mean over three service times, by Gauss-Hermite quadrature: given the service time, all requests have
    the same standard deviation, and start and tail have their means given that time. A group that is late
    for rare service times only, which the three nodes miss, is split into parts instead.
    """
    if requests <= EXACT_REQUESTS_MAX:
        return summed_penalty(
            requests, late_s, var, service_s, service_var, tail_var, miss_weight_s, cross_var
        )
    fixed_var = var + tail_var
    if fixed_var + service_var <= 0.0:
        return _certain_penalty(requests, late_s, service_s, miss_weight_s)
    if service_s <= INSTANT_SERVICE_RATIO * math.sqrt(fixed_var) or service_s <= SHORT_S:
        middle_s = late_s + 0.5 * service_s * (1.0 + 1.0 / requests)
        middle_var = fixed_var + 0.5 * cross_var + 0.34 * service_var
        return requests * request_penalty(middle_s, middle_var, miss_weight_s)
    share, half_s = min(1.0, max(0.0, -late_s / service_s)), 0.5 * service_s / requests
    narrow = service_var <= STEPWISE_RATIO * STEPWISE_RATIO * service_s * service_s
    if narrow and fixed_var + share * (cross_var + share * service_var) <= half_s * half_s:
        return _stepped_penalty(requests, late_s, fixed_var, service_s, service_var, miss_weight_s, cross_var)
    correlated = cross_var * cross_var > service_var * fixed_var
    if (
        correlated
        or late_s + service_s <= 0.0
        or service_var > SPLIT_RATIO * service_s * math.sqrt(fixed_var)
    ):
        return _parted_penalty(requests, late_s, fixed_var, service_s, service_var, miss_weight_s, cross_var)
    spread_s = math.sqrt(3.0 * service_var)
    slope = 0.5 * cross_var / service_var if service_var > 0.0 else 0.0
    sd = math.sqrt(max(0.0, fixed_var - 0.5 * slope * cross_var))
    cost = 0.0
    for node in range(-1, 2):
        weight = 2.0 / 3.0 if node == 0 else 1.0 / 6.0
        span_s = max(LEAST_SERVICE * service_s, service_s + node * spread_s)
        from_s = late_s + slope * node * spread_s + 0.5 * span_s / requests
        cost += weight / span_s * _whole_penalty(from_s, from_s + span_s, sd, miss_weight_s)
    return requests * cost


@compiled(inline="always")
def _stepped_penalty(
    requests: float,
    late_s: float,
    fixed_var: float,
    service_s: float,
    service_var: float,
    miss_weight_s: float,
    cross_var: float,
) -> float:
    """Return the penalty where the time between requests is more than their standard deviation.

    Requests near the deadline, a dozen at most, are summed up; the others are surely on time or surely late.
    """
    step_s = service_s / requests
    on_time = math.floor(min(requests, max(0.0, -late_s / step_s)))
    cost, late = 0.0, on_time + 1.0
    for way in (-1.0, 1.0):
        r = on_time if way < 0.0 else late
        while 1.0 <= r <= requests:
            share, mean_s = r / requests, late_s + r * step_s
            var = fixed_var + share * (cross_var + share * service_var)
            if mean_s * mean_s >= CERTAIN_SD * CERTAIN_SD * var:
                break
            cost += request_penalty(mean_s, var, miss_weight_s)
            r += way
        late = max(late, r)
    missed = requests - late + 1.0
    return cost + missed * (late_s + step_s * 0.5 * (late + requests) + miss_weight_s)


@compiled(inline="always")
def _parted_penalty(
    requests: float,
    late_s: float,
    fixed_var: float,
    service_s: float,
    service_var: float,
    miss_weight_s: float,
    cross_var: float,
) -> float:
    begin, cost = 0.5 / requests, 0.0
    for _ in range(SPLIT_PARTS):
        end = begin + 1.0 / SPLIT_PARTS
        share = min(end, max(begin, -late_s / service_s))
        sd = math.sqrt(fixed_var + share * (cross_var + share * service_var))
        cost += _whole_penalty(late_s + begin * service_s, late_s + end * service_s, sd, miss_weight_s)
        begin = end
    return requests / service_s * cost


@compiled(inline="always")
def _whole_penalty(from_s: float, to_s: float, sd: float, miss_weight_s: float) -> float:
    """Integrate as `part_penalty` does; the standard deviation may be 0."""
    if sd > NO_VARIANCE_RATIO * (to_s - from_s):
        return part_penalty(from_s, to_s, sd, miss_weight_s)
    first_s = max(0.0, from_s)
    return max(0.0, to_s - first_s) * (0.5 * (first_s + to_s) + miss_weight_s)


@compiled(inline="always")
def _certain_penalty(requests: float, late_s: float, service_s: float, miss_weight_s: float) -> float:
    """Return the penalty without any variance: request r ends late_s + (r/n) service_s after the deadline."""
    step_s = service_s / requests
    if step_s <= 0.0:  # a denormal service time over the requests underflows: they end together
        return requests * request_penalty(late_s, 0.0, miss_weight_s)
    on_time = math.floor(min(requests, max(0.0, (ON_TIME_S - late_s) / step_s * (1.0 + 1e-12))))
    missed = requests - on_time
    return missed * (late_s + step_s * 0.5 * (on_time + 1.0 + requests) + miss_weight_s)
