"""Time to the first token in a batch with free slots under asynchronous scheduling.

The engine puts an iteration together when the one before starts. So a request that comes during one iteration
waits for its end and for all of the next, and is computed in the one after, together with the other prompts
that came during the former. The first is longer than most, since more requests come during a long iteration,
and the more prompts come during it, the longer is the last. These depend on each other, so the distribution
is taken from evenly spread points instead of a sum of independent waits.
"""

from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from qlm.rct_estimator.length_predictive import FloatArray

SHARE_MAX: Final = 0.8
"""Bound of the engine's share of time for prompts: above it, the batch has no free slots."""

_POINTS: Final = 1024
_RATIO: Final = 1.1673039782614187
"""Root of x^5 = x + 1. Multiples of the powers of its inverse spread evenly in four dimensions."""
_PRESENT, _NEXT, _BESIDE, _LEFT = (0.5 + np.outer(_RATIO ** -np.arange(1.0, 5.0), np.arange(_POINTS))) % 1.0
_TAIL: Final = 1e-4
_SHARES: Final = np.linspace(_TAIL, 1 - _TAIL, 2001)
_NORMAL: Final = np.array([NormalDist().inv_cdf(share) for share in _SHARES.tolist()])
_CV2_MIN: Final = 0.05


class PromptWork(NamedTuple):
    """Work of the prompts that join a batch.

    Attributes:
        rate_rps: Requests per second.
        share: Time that their prompts take, per second.
        square_s: Sum of the squares of these times, per second.
    """

    rate_rps: float
    share: float
    square_s: float


def async_first_token_s(decode_s: float, work: PromptWork, own_s: FloatArray) -> FloatArray:
    """Return equally likely times to the first token, ascending, in the shape of `own_s`, seconds.

    Args:
        decode_s: Iteration without prompts.
        work: Prompts of other requests; some come.
        own_s: Equally likely times of the request's own iterations, decodes included; their number divides
            1024.
    """
    share = min(SHARE_MAX, work.share)
    mean_s = np.asarray(decode_s / (1 - share))
    # Long iterations cause long ones two later, so that lengths vary by more than one step explains.
    varying = work._replace(square_s=work.square_s / (1 - share**2))
    steady = _prompts(mean_s, varying)
    # Short iterations bring fewer prompts than a mean one.
    none = np.exp(-work.rate_rps * (decode_s + steady.at(_NEXT))).mean()
    steady = _prompts(mean_s, varying, none)
    next_s = decode_s + steady.at(_NEXT)
    present_s = decode_s + steady.reached(_PRESENT, share)
    own = own_s[np.arange(_POINTS) * 13 % len(own_s)]
    total_s = np.sort(present_s * _LEFT + next_s + _prompts(present_s, work).at(_BESIDE) + own)
    return np.asarray(total_s.reshape(len(own_s), -1).mean(axis=1))


class _Prompts(NamedTuple):
    """Work of prompts that come within some time: 0 with probability `none`, else log-normal."""

    none: FloatArray
    log_mean: FloatArray
    log_var: FloatArray

    def at(self, shares: FloatArray) -> FloatArray:
        """Return the work at these shares of its distribution, seconds."""
        return np.where(shares > self.none, self._lognormal((shares - self.none) / (1 - self.none)), 0.0)

    def reached(self, shares: FloatArray, share: float) -> FloatArray:
        """Return the work of prompts in the iteration during which a request arrives, seconds.

        A request meets a long iteration more often than a short one: one of decode time d and work X with a
        probability in proportion to d + X. So the work is distributed as X, but with probability `share` as X
        weighted by itself. A log-normal distribution weighted by its own value is log-normal again.

        Args:
            shares: Shares of the distribution at which it is returned.
            share: Part of all time that is work of prompts.
        """
        idle = shares / (1 - share)
        by_work = (shares - 1 + share) / max(share, _TAIL)
        return np.where(idle < 1, self.at(np.minimum(idle, 1.0)), self._lognormal(by_work, weighted=True))

    def _lognormal(self, shares: FloatArray, *, weighted: bool = False) -> FloatArray:
        mean = self.log_mean + (self.log_var if weighted else 0.0)
        return np.asarray(np.exp(mean + np.sqrt(self.log_var) * np.interp(shares, _SHARES, _NORMAL)))


def _prompts(lasting_s: FloatArray, work: PromptWork, none: FloatArray | None = None) -> _Prompts:
    """Return the work that comes within these times: a compound Poisson variable by its two moments."""
    none = np.exp(-work.rate_rps * lasting_s) if none is None else none
    some = np.maximum(1 - none, _TAIL * _TAIL)
    mean_s = np.maximum(min(SHARE_MAX, work.share) * lasting_s, _TAIL * _TAIL)
    cv2 = (work.square_s * lasting_s + mean_s**2) * some / mean_s**2 - 1
    log_var = np.log1p(np.maximum(_CV2_MIN, cv2))
    return _Prompts(none, np.log(mean_s / some) - log_var / 2, log_var)
