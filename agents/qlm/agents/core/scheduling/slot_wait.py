"""Whether a slot frees by itself early enough, so that a request need not be preempted for it (decision 53).

The ends of running answers count as a Poisson process: with n of them, each of which takes s seconds in the
mean, n / s end per second (Little's law).
"""

import math
from statistics import NormalDist
from typing import Final

from qlm.agents.core.state import AgentState
from qlm.rct_estimator.recompute import discarded_s

MISS_MIN: Final = 0.02
MISS_MAX: Final = 0.2
"""Least and largest chance of a miss by waiting from which a preemption is worth what it computes again."""


def worth_waiting_s(state: AgentState, tokens: int, places: int, within_s: float) -> float:
    """Return for how long a preemption costs more than it saves, since a place is likely to free by itself.

    Args:
        state: The agent.
        tokens: Tokens of what is to start; 0 if they are not known.
        places: Places in the batch that it needs.
        within_s: Time that it can wait, seconds.
    """
    kv, service_s = state.requests.kv, state.stats.pace_of(state.engines.active).service_s
    if not kv.running or not service_s:
        return 0.0
    ends_per_s = kv.running / service_s
    missing_blocks = kv.blocks_of(tokens) - kv.free_blocks
    ends = max(places, math.ceil(missing_blocks * kv.running / max(1, kv.blocks)))
    return max(0.0, within_s - _expected(ends, _price(state, ends_per_s)) / ends_per_s)


def _expected(ends: int, chance: float) -> float:
    """Return with how many expected ends the chance of fewer than that is as given.

    That is a quantile of a Gamma distribution, by the approximation of Wilson and Hilferty (1931).
    """
    z = NormalDist().inv_cdf(1 - chance)
    return ends * max(0.0, 1 - 1 / (9 * ends) + z / (3 * math.sqrt(ends))) ** 3


def _price(state: AgentState, ends_per_s: float) -> float:
    """Return the requests that are served in the time in which a preempted one is computed again."""
    kv, model = state.requests.kv, state.engines.active
    cost = None if model is None else state.costs.kv.get(model)
    if cost is None:
        return MISS_MIN
    again_s = discarded_s(kv.tokens / kv.running, cost.recompute_s)
    return min(MISS_MAX, max(MISS_MIN, again_s * ends_per_s))
