"""Expected lateness of every request under the normal model, in closed form."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qlm.planner.limits import ON_TIME_S
from qlm.planner.verify.timeline import Served
from qlm.rct_estimator.normal import Normal

Floats = NDArray[np.float64]

CHUNK_REQUESTS: Final = 500_000
"""Requests computed at once, unless one group has more: about 50 MB."""

SURELY_LATE: Final = 8.3
"""Standard deviations above which 1 - P(X > 0) is below half the spacing of numbers at 1."""

SURELY_MET: Final = -38.0
"""Standard deviations below which P(X > 0) is no normal number, below 1e-315."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Expected lateness of one group, summed over its requests.

    Attributes:
        late_s: Sum of E[max(0, X)], X = completion - deadline.
        late_requests: Sum of P(X > 0).
    """

    late_s: float
    late_requests: float


ON_TIME: Final = Lateness(0.0, 0.0)
"""Lateness of a group without a deadline."""


def lateness(mean_s: Floats, var: Floats) -> tuple[Floats, Floats]:
    """Return E[max(0, X)] and P(X > 0) of normal variables; certain ones where the variance is 0.

    A certain lateness up to `ON_TIME_S` counts as on time.

    With z = mean/sd: P = erfc(-z/sqrt 2)/2, to some 1e-16 z^2 of its value, and E = mean P + sd phi(z).

    Args:
        mean_s: Mean of completion less deadline, seconds; any shape.
        var: Variance, of the same shape.
    """
    sd = np.sqrt(var)
    certain = sd == 0
    z = np.where(
        certain, np.where(mean_s > ON_TIME_S, math.inf, -math.inf), mean_s / np.where(certain, 1.0, sd)
    )
    late = (z > SURELY_LATE).astype(np.float64)
    late_s = np.where(z > SURELY_LATE, mean_s, 0.0)
    open_ = np.flatnonzero((z >= SURELY_MET) & (z <= SURELY_LATE))
    if open_.size:
        zs = z[open_]
        # NumPy has no erfc; the C library's, called one by one, is exact to the last digit.
        upper = np.fromiter(map(math.erfc, (zs * -math.sqrt(0.5)).tolist()), np.float64, open_.size) / 2
        late[open_] = upper
        density = np.exp(-0.5 * zs * zs) / math.sqrt(2 * math.pi)
        late_s[open_] = np.maximum(0.0, mean_s[open_] * upper + sd[open_] * density)
    return late_s, late


def p_on_time(completion: Normal, deadline_s: float) -> float:
    """Return the probability of completion by a deadline, by the same rule."""
    return completion.at_most(deadline_s if completion.var else deadline_s + ON_TIME_S)


def group_lateness(served: Sequence[Served], now_s: float) -> list[Lateness]:
    """Sum the expected lateness of requests r = 1..n of each group; C_r = start + (r/n) service + tail.

    The variance of C_r is quadratic in r/n: with shared errors it has a linear term.
    """
    result = [ON_TIME] * len(served)
    for chunk in _chunks(served):
        requests = np.array([served[at].group.requests for at in chunk], dtype=np.int64)
        ends = np.cumsum(requests)
        first = ends - requests
        share = (np.arange(ends[-1]) - np.repeat(first, requests) + 1) / np.repeat(requests, requests)
        terms = np.array([_terms(served[at], now_s) for at in chunk]).T
        base_s, service_s, base_var, cross_var, service_var = (np.repeat(row, requests) for row in terms)
        var = base_var + share * (cross_var + share * service_var)
        late_s, late = lateness(base_s + share * service_s, var)
        sums = zip(chunk, np.add.reduceat(late_s, first), np.add.reduceat(late, first), strict=True)
        for at, sum_s, sum_late in sums:
            result[at] = Lateness(float(sum_s), float(sum_late))
    return result


def _terms(served: Served, now_s: float) -> tuple[float, float, float, float, float]:
    """Return the mean of X, constant and linear in the request's share, and its variance, quadratic in it."""
    assert served.group.deadline_s is not None
    first, service = served.completion(0.0), served.time.whole_service
    late_s = first.mean - (served.group.deadline_s - now_s)
    return late_s, service.mean, first.var, served.cross_var, service.var


def _chunks(served: Sequence[Served]) -> Iterator[list[int]]:
    """Batch groups with a deadline up to `CHUNK_REQUESTS` requests."""
    chunk: list[int] = []
    total = 0
    for at, each in enumerate(served):
        if each.group.deadline_s is None:
            continue
        if chunk and total + each.group.requests > CHUNK_REQUESTS:
            yield chunk
            chunk, total = [], 0
        chunk.append(at)
        total += each.group.requests
    if chunk:
        yield chunk
