"""How long a prompt takes that is given to a batch with places free, others' prompts before it included.

The engine computes prompts in the order of their arrival, chunk by chunk, with one token for each running
request in each iteration. Where it has none it goes on decoding, so that a prompt that comes then waits for
the end of that iteration: a single server with vacations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.throughput import BATCHED_TOKENS_MAX
from qlm.rct_estimator.workload import Workload

STRATA: Final = 32
"""Equally likely values that stand for a distribution; the largest has to tell the 95th percentile."""

SHARE_MAX: Final = 0.8
"""Prompts take at most this share of the engine's time: beyond it, the batch is not one with places free."""

_SHARES: Final = (np.arange(STRATA) + 0.5) / STRATA
_NORMAL: Final = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_SHUFFLED: Final = np.array([int(f"{at:05b}"[::-1], 2) for at in range(STRATA)])
"""Bit reversal: pairs two distributions as if they were independent."""
_SHUFFLED_AGAIN: Final = (_SHUFFLED * 13 + 5) % STRATA


@dataclass(frozen=True, slots=True)
class Prefills:
    """What prompts cost beside a batch.

    Attributes:
        profile: Of the model on the accelerator.
        running: Requests in the batch.
        decode_s: One iteration of theirs without prompts, seconds; 0 if there are none.
    """

    profile: Profile
    running: float
    decode_s: float

    @property
    def room_tokens(self) -> float:
        """Prompt tokens that one iteration computes at most."""
        return max(1.0, BATCHED_TOKENS_MAX - self.running)

    @property
    def token_s(self) -> float:
        """What each of them adds to it."""
        return (self.profile.prefill_ms(1, 1.0) - self.profile.prefill_ms(1, 0.0)) / 1000

    def seconds(self, prompt_tokens: FloatArray) -> FloatArray:
        """From the first iteration with a prompt to the end of its last one, elementwise."""
        profile = self.profile
        chunks = np.maximum(1.0, np.ceil(prompt_tokens / self.room_tokens))
        shared_ms = min(profile.prefill.delta, profile.decode.delta) if self.decode_s else 0.0
        fixed_s = self.decode_s + (profile.prefill_ms(1, 0.0) - shared_ms) / 1000
        return np.asarray(chunks * fixed_s + prompt_tokens * self.token_s)


def first_token_s(
    prefills: Prefills,
    coming: Sequence[tuple[float, Workload]],
    own: Workload,
    prompt_tokens: int | None,
    piled: Normal = NOTHING,
) -> FloatArray:
    """Time from a place in the batch to the first token, seconds.

    The wait in a queue with vacations is that without them (Pollaczek and Khinchine: none with probability
    1 - rho, else log-normal with the right mean and variance) and what is left of the
    iteration, uniformly distributed over it, one independent of the other.

    Args:
        prefills: What prompts cost.
        coming: Requests per second whose prompts are computed there, and their lengths.
        own: Of the class of the request.
        prompt_tokens: Its prompt, if known.
        piled: Wait for prompts that have piled up behind the token budget; the longer of both waits counts.

    Returns:
        Equally likely values, rising; shape (STRATA,).
    """
    mean, square, cube = 0.0, 0.0, 0.0
    for rate_rps, workload in coming:
        each_s = prefills.seconds(_prompts(workload))
        mean += rate_rps * float(each_s.mean())
        square += rate_rps * float((each_s**2).mean())
        cube += rate_rps * float((each_s**3).mean())
    share = min(SHARE_MAX, mean)
    wait_s = square / 2 / (1 - share)
    queue_s = _queue_s(share, wait_s, 2 * wait_s**2 + cube / 3 / (1 - share))
    if piled.mean > wait_s:
        queue_s = piled.mean * _lognormal(_NORMAL, piled.var / piled.mean**2)
    prompts = _prompts(own) if prompt_tokens is None else np.full(STRATA, float(prompt_tokens))
    prompts = prompts[_SHUFFLED_AGAIN]
    waited_s = queue_s + (prefills.decode_s * _SHARES)[_SHUFFLED]
    # What comes meanwhile is computed in its last iteration, too, as far as that has room.
    behind = waited_s * sum(rate_rps * workload.prompt_tokens for rate_rps, workload in coming)
    behind = np.minimum(behind, -prompts % prefills.room_tokens)
    return np.sort(waited_s + prefills.seconds(prompts) + behind * prefills.token_s)


def _prompts(workload: Workload) -> FloatArray:
    """Equally likely prompts: log-normal with the class's mean and variance."""
    return workload.prompt_tokens * _lognormal(_NORMAL, workload.prompt_cv2)


def _lognormal(normal: FloatArray, cv2: float) -> FloatArray:
    """Values of a log-normal distribution for those of a standard normal one; their mean is 1.

    A few values stand for a distribution with a long tail: they are scaled to keep its mean.
    """
    values = np.exp(normal * np.sqrt(np.log1p(cv2)))
    return np.asarray(values / values.mean())


def _queue_s(share: float, mean_s: float, square: float) -> FloatArray:
    """Nothing with probability 1 - share, else log-normal; mean and second moment of the whole are given."""
    values = np.zeros(STRATA)
    busy = _SHARES - 1 + share > 0
    if not busy.any() or mean_s <= 0:
        return np.full(STRATA, mean_s)
    inner_s = mean_s / share
    cv2 = max(0.05, square / share / inner_s**2 - 1)
    shares = (_SHARES[busy] - 1 + share) / share
    values[busy] = _lognormal(np.array([NormalDist().inv_cdf(each) for each in shares]), cv2)
    return np.asarray(values * (mean_s * STRATA / values.sum()))
