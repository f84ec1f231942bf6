"""When requests and groups are done, and how likely they meet their deadline (QLM, equations 1, 4 and 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.length_predictive import TOKENS_MAX, FloatArray, LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import emptying_time

STRATA: Final = 16
"""Values that stand for the distribution of a length where it is folded with a waiting time."""

_STANDARD: Final = NormalDist()
_ROOT_HALF: Final = math.sqrt(0.5)
_ROOT_PI: Final = math.sqrt(math.pi)

_EXPONENTIAL: Final = -np.log(1 - (np.arange(STRATA) + 0.5) / STRATA)
"""Equally likely values of an exponential variable with mean 1 (0.98 here)."""

_CERTAIN_S: Final = 1e-8
"""A wait with a smaller deviation counts as certain where quantiles are concerned."""

_STEPS_MAX: Final = 100
"""Steps towards a quantile; bisection alone needs fewer than that."""


@dataclass(frozen=True, slots=True, eq=False)
class CompletionTime:
    """Distribution of W + X: a normal waiting time and a service time of equally likely values.

    A sum of many lengths is nearly normal, a single answer is not: its skew decides about tight deadlines.

    Attributes:
        wait: W, seconds.
        service_s: Values of X, seconds, each as likely as the others; shape (points,), rising.
    """

    wait: Normal
    service_s: FloatArray

    @property
    def normal(self) -> Normal:
        """Mean and variance."""
        return self.wait + Normal(float(self.service_s.mean()), float(self.service_s.var()))

    def at_most(self, deadline_s: float) -> float:
        """P(done by the deadline), counted from the same moment as the wait."""
        return float(np.mean([self.wait.at_most(deadline_s - x) for x in self.service_s]))

    def quantile(self, share: float) -> float:
        """Time by which it is done with that probability, in (0, 1), seconds; within 1e-6 of it.

        Newton's method, kept within bounds by bisection: ten steps at most in practice.
        """
        mean, sigma = self.wait.mean, math.sqrt(self.wait.var)
        if sigma < _CERTAIN_S:
            at = max(0, math.ceil(share * len(self.service_s) - 1e-9) - 1)
            return mean + float(np.sort(self.service_s)[at]) + 10 * _CERTAIN_S
        standard: float = _STANDARD.inv_cdf(share)
        if len(self.service_s) == 1:
            return mean + float(self.service_s[0]) + sigma * standard
        values: list[float] = self.service_s.tolist()
        # All of it is at least as late as with the shortest service, and at most as with the longest.
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
    """Completion of a request: C_q = W_q + P + D_q with D_q = O_q epsilon d (equations 1 and 4).

    Args:
        wait: W_q, until it has its place (`waiting_time`).
        state: Of its instance, at the batch it will run in.
        lengths: Its output length O_q.
        cap: Its `max_tokens`.
    """
    steps = np.maximum(lengths.strata(STRATA, cap) - 1, 0.0)
    return CompletionTime(wait, state.prefill_s + state.queue_s + steps * state.iteration_s)


def first_token(wait: Normal, state: SteadyState) -> CompletionTime:
    """First token of a request, W_q + P: what a TTFT objective is about.

    The wait for the prefills of others in the batch is spread exponentially.
    """
    return CompletionTime(wait, state.prefill_s + state.queue_s * _EXPONENTIAL)


def group_completion(
    wait_last: Normal,
    state: SteadyState,
    lengths: LengthPredictive,
    *,
    requests: float,
    cap: float = TOKENS_MAX,
    followed: bool = True,
) -> Normal:
    """Completion of a group: the last of its requests to end, C = max_q C_q (equation 5).

    The C_q depend on each other through the queue. Approximation: by the time the group's last request
    has its place, all others have theirs; from then on the longest of those in the batch rules, and
    what they have left is independent of the wait (see `emptying_time`).

    Args:
        wait_last: W of the group's last request.
        state: Of the instance when its batch is full.
        lengths: Output length of each request.
        requests: In the group.
        cap: Output limit, tokens.
        followed: More work follows on the same model, so that the batch stays full.
    """
    return wait_last + emptying_time(state, lengths, requests=requests, cap=cap, followed=followed)


def running_completion(
    state: SteadyState, lengths: LengthPredictive, produced: npt.ArrayLike, cap: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Time left of requests in the batch, given how far they are.

    Args:
        state: Of the instance at its present batch.
        lengths: Output length before anything was produced.
        produced: Output tokens so far, shape (n,).
        cap: Their `max_tokens`, shape (n,) or a scalar.

    Returns:
        Mean and variance in seconds, each of shape (n,).
    """
    mean, var = lengths.remaining(produced, cap)
    return mean * state.iteration_s, var * state.iteration_s**2


def met_share(completions: Sequence[CompletionTime], deadlines_s: Sequence[float]) -> float:
    """Expected attainment: mean over requests of P(done by its deadline); 1 for none."""
    if not completions:
        return 1.0
    met = [c.at_most(d) for c, d in zip(completions, deadlines_s, strict=True)]
    return sum(met) / len(met)
