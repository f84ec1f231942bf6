"""Goodput by token deadlines, and smooth goodput (smooth goodput, equations 5 to 8).

An abandoned request counts with a benefit of 0, so to drop one that is late never gains.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

HALF_LIFE_S: Final = 5.39
"""Idle time after which half of the users have left: 32 % leave within 3 s (Andes, section 2.2), at a
constant rate. The paper's own f is lost."""


class Streamed(NamedTuple):
    """One request as its user lived through it.

    Attributes:
        tokens: Output tokens; 0 if it was refused, failed, or abandoned.
        idle_s: Idle time of the user.
        met: All of its token deadlines were met.
    """

    tokens: int
    idle_s: float
    met: bool


def users_left(idle_s: float, half_life_s: float = HALF_LIFE_S) -> float:
    """Return f of equation 7: the share of users who have left after an idle time."""
    return 1.0 - float(2.0 ** (-idle_s / half_life_s))


def benefit(request: Streamed, *, alpha: float = 1.0, half_life_s: float = HALF_LIFE_S) -> float:
    """Return the tokens of a request that reach users who are still there (equation 7)."""
    return request.tokens * (1.0 - min(1.0, alpha * users_left(request.idle_s, half_life_s)))


def goodput(requests: Iterable[Streamed], span_s: float) -> float:
    """Return the tokens per second of requests that met their deadlines (equation 5)."""
    return sum(each.tokens for each in requests if each.met) / span_s


def smooth_goodput(
    requests: Iterable[Streamed], span_s: float, *, alpha: float = 1.0, half_life_s: float = HALF_LIFE_S
) -> float:
    """Return the tokens per second to users who are still there (equation 8)."""
    return sum(benefit(each, alpha=alpha, half_life_s=half_life_s) for each in requests) / span_s


def latency_goodput(latencies_s: Iterable[tuple[float, bool]]) -> float:
    """Return G of SLO-aware annealing: requests that met their objective per second of latency of all.

    Args:
        latencies_s: End-to-end latency of each request, and whether it met its objective.
    """
    met, total_s = 0, 0.0
    for latency_s, in_time in latencies_s:
        met += in_time
        total_s += latency_s
    return met / total_s if total_s > 0 else 0.0
