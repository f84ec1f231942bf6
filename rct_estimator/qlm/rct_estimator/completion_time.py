"""Completion time of one request as a distribution, and P(deadline met) (QLM, equations 1 and 4)."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from qlm.rct_estimator.length_predictive import TOKENS_MAX, FloatArray, LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState

STRATA: Final = 16
"""Equally likely values that stand for an output length when it is convolved with a waiting time."""

_STANDARD: Final = NormalDist()
_ROOT_HALF: Final = math.sqrt(0.5)
_ROOT_PI: Final = math.sqrt(math.pi)

_CERTAIN_S: Final = 1e-8
"""Waits with a smaller standard deviation are treated as certain by `quantile`."""

_STEPS_MAX: Final = 100
"""Limit of root-finding steps per quantile; bisection alone needs fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class CompletionTime:
    """Distribution of W + X: a normal waiting time plus a service time given as equally likely values.

    A sum of many lengths is nearly normal. A single answer is skewed, and tight deadlines depend on the skew.

    Attributes:
        wait: W, seconds.
        service_s: Equally likely values of X, seconds, ascending; shape (points,).
    """

    wait: Normal
    service_s: FloatArray

    @property
    def normal(self) -> Normal:
        """The normal distribution of the same mean and variance."""
        return self.wait + Normal(float(self.service_s.mean()), float(self.service_s.var()))

    def at_most(self, deadline_s: float) -> float:
        """Return P(W + X <= deadline); both count from the same instant."""
        return float(np.mean([self.wait.at_most(deadline_s - x) for x in self.service_s]))

    def quantile(self, share: float) -> float:
        """Return the time that W + X exceeds with probability 1 - share, seconds; `share` is in (0, 1).

        Newton's method with bisection as a safeguard: at most ten steps in practice, error below 1e-6.
        """
        mean, sigma = self.wait.mean, math.sqrt(self.wait.var)
        if sigma < _CERTAIN_S:
            at = max(0, math.ceil(share * len(self.service_s) - 1e-9) - 1)
            return mean + float(np.sort(self.service_s)[at]) + 10 * _CERTAIN_S
        standard: float = _STANDARD.inv_cdf(share)
        if len(self.service_s) == 1:
            return mean + float(self.service_s[0]) + sigma * standard
        values: list[float] = self.service_s.tolist()
        # Bounds: the same wait with the shortest and with the longest service time.
        low = mean + min(values) + sigma * standard
        high = mean + max(values) + sigma * standard
        at_s = min(high, max(low, self.normal.mean + math.sqrt(self.normal.var) * standard))
        for _ in range(_STEPS_MAX):
            z = [(at_s - mean - x) / sigma for x in values]
            excess = sum(math.erfc(-v * _ROOT_HALF) for v in z) / (2 * len(values)) - share
            low, high = (at_s, high) if excess < 0 else (low, at_s)
            density = sum(math.exp(-v * v / 2) for v in z) * _ROOT_HALF / (_ROOT_PI * sigma * len(values))
            step_s = excess / density if density > 0 else math.inf
            after_s = at_s - step_s if low <= at_s - step_s <= high else (low + high) / 2
            if high - low <= 1e-9:
                return high
            if abs(after_s - at_s) <= max(1e-7 * sigma, 1e-12 * abs(at_s)):
                return after_s
            at_s = after_s
        return at_s


def request_completion(
    wait: Normal, state: SteadyState, lengths: LengthPredictive, *, cap: float = TOKENS_MAX
) -> CompletionTime:
    """Return C_q = W_q + P + D_q with D_q = O_q epsilon d (equations 1 and 4).

    Args:
        wait: W_q, until the request has a batch slot (`waiting_time`).
        state: Steady state of its instance, at the batch size it will run in.
        lengths: Distribution of O_q.
        cap: `max_tokens` of the request.
    """
    steps = np.maximum(lengths.strata(STRATA, cap) - 1, 0.0)
    return CompletionTime(wait, state.prefill_s + state.queue_s + steps * state.iteration_s)
