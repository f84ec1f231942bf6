"""Time to the first token in a batch with free slots, with the prompts of others before it.

The engine computes prompts in the order of arrival, chunk by chunk, with one token per running request in
each iteration. Without prompts it continues to decode, so a new prompt waits for the end of that iteration: a
single server with vacations. With asynchronous scheduling the next iteration is put together by then, so the
prompt waits for that one too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from qlm.controller.core.estimating.async_first_token import SHARE_MAX, PromptWork, async_first_token_s
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.workload import Workload

STRATA: Final = 32
"""Equally likely values that stand for a distribution; enough for its 95th percentile."""

_INSTANT_S: Final = 1e-9
"""Least time of a prompt, seconds."""

_SHARES: Final = (np.arange(STRATA) + 0.5) / STRATA
_NORMAL: Final = np.array([NormalDist().inv_cdf(share) for share in _SHARES])
_SHUFFLED: Final = np.array([int(f"{at:05b}"[::-1], 2) for at in range(STRATA)])
"""Bit reversal: pairs the values of two distributions as if these were independent."""
_SHUFFLED_AGAIN: Final = (_SHUFFLED * 13 + 5) % STRATA
_SHUFFLED_THRICE: Final = (_SHUFFLED * 7 + 19) % STRATA
_SHUFFLED_FOR_HITS: Final = (np.arange(STRATA) * 11 + 7) % STRATA


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCosts:
    """Cost of prompts beside a running batch.

    Attributes:
        profile: Profile of the model on the accelerator.
        running: Requests in the batch.
        context_tokens: Mean context of one of them.
        decode_s: One iteration without prompts, seconds; 0 for an empty batch.
    """

    profile: Profile
    running: float
    context_tokens: float
    decode_s: float

    @property
    def budget_tokens(self) -> float:
        """Prompt tokens per iteration that the token budget leaves beside the decodes."""
        return max(1.0, self.profile.batched_tokens_max - self.running)

    def chunks(self, prompt_tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the number of iterations with all of the budget, and the tokens of the last; elementwise."""
        full = np.maximum(0.0, np.ceil(prompt_tokens / self.budget_tokens) - 1)
        return full, prompt_tokens - full * self.budget_tokens

    def seconds(self, prompt_tokens: FloatArray, cached_share: FloatArray | float = 0.0) -> FloatArray:
        """Return the time of all iterations of a prompt of which the cache holds a share, elementwise."""
        of = self.profile.iteration
        full, rest = self.chunks((1 - cached_share) * prompt_tokens)
        each_ms = of.sequence_ms + (of.kv_beside_prompts_ms - of.kv_ms) * self.running * self.context_tokens
        if not self.decode_s:
            each_ms += of.host_ms + of.linear(self.running)
        extra_ms = full * self.linear_ms(self.budget_tokens) + self.linear_ms(rest)
        extra_ms += (full + 1) * each_ms + of.square_ms * (1 - cached_share**2) * prompt_tokens**2 / 2
        extra_ms += of.admission_ms
        return np.maximum((full + 1) * self.decode_s + extra_ms / 1000, _INSTANT_S)

    def linear_ms(self, prompt_tokens: FloatArray | float) -> FloatArray:
        """Return the time that prompt tokens add to the linear term of an iteration, milliseconds."""
        of = self.profile.iteration
        return of.linears(self.running + prompt_tokens) - of.linear(self.running)


def first_token_s(
    prefills: PrefillCosts,
    arriving: Sequence[tuple[float, Workload]],
    own: Workload,
    prompt_tokens: int | None,
    queued: Normal = NOTHING,
) -> FloatArray:
    """Return the time from a batch slot to the first token: equally likely values, ascending, seconds.

    The wait in a queue with vacations is the sum of two independent parts. One is the wait without vacations
    (Pollaczek and Khinchine: 0 with probability 1 - rho, else log-normal with the right mean and variance).
    The other is the rest of the present iteration, uniform over it. The result has the shape (STRATA,).

    Args:
        prefills: Cost of prompts beside the batch.
        arriving: Requests per second that join the batch, and their workload.
        own: Workload of the request's class.
        prompt_tokens: Length of its prompt; None for a random one of the class.
        queued: Wait behind prompts queued for the token budget; the longer of both waits counts.
    """
    prompts = _prompts(own) if prompt_tokens is None else np.full(STRATA, float(prompt_tokens))
    prompts = prompts[_SHUFFLED_AGAIN]
    own_cached = _cached(own)
    own_s = prefills.seconds(prompts, own_cached)
    outside_s = prefills.profile.request_ms / 1000
    times = [
        (rate_rps, prefills.seconds(_prompts(workload), _cached(workload))) for rate_rps, workload in arriving
    ]
    share = min(SHARE_MAX, sum(rate_rps * float(each_s.mean()) for rate_rps, each_s in times))
    wait_s = sum(rate_rps * float((each_s**2).mean()) for rate_rps, each_s in times) / 2 / (1 - share)
    scheduled_s = np.zeros(STRATA)
    if prefills.profile.async_scheduling and prefills.decode_s:
        work = _work(prefills.decode_s, times)
        if work.rate_rps and queued.mean <= wait_s:
            return async_first_token_s(prefills.decode_s, work, own_s) + outside_s
        scheduled_s = _scheduled_s(prefills, work)[_SHUFFLED_THRICE]
    if queued.mean > wait_s:
        queue_s = queued.mean * _lognormal(_NORMAL, queued.var / queued.mean**2)
    else:
        cube = sum(rate_rps * float((each_s**3).mean()) for rate_rps, each_s in times)
        queue_s = _queue_s(share, wait_s, 2 * wait_s**2 + cube / 3 / (1 - share))
    waited_s = queue_s + (prefills.decode_s * _SHARES)[_SHUFFLED] + scheduled_s
    # Later arrivals share its last iteration as far as the token budget allows.
    behind = waited_s * sum(rps * each.computed_share * each.prompt_tokens for rps, each in arriving)
    _, rest = prefills.chunks((1 - own_cached) * prompts)
    together = rest + np.minimum(behind, prefills.budget_tokens - rest)
    behind_s = (prefills.linear_ms(together) - prefills.linear_ms(rest)) / 1000
    return np.sort(waited_s + own_s + behind_s + outside_s)


def _work(decode_s: float, times: Sequence[tuple[float, FloatArray]]) -> PromptWork:
    """Return the work of prompts, given by rate and times, beside the decodes of their iterations."""
    rate_rps, share, square_s = 0.0, 0.0, 0.0
    for each_rps, each_s in times:
        extra_s = np.maximum(0.0, each_s - decode_s)
        rate_rps += each_rps
        share += each_rps * float(extra_s.mean())
        square_s += each_rps * float((extra_s**2).mean())
    return PromptWork(rate_rps, share, square_s)


def _scheduled_s(prefills: PrefillCosts, work: PromptWork) -> FloatArray:
    """Return the time of the iteration that was scheduled before a request came: equally likely, ascending.

    It decodes, and computes the prompts that came within one mean iteration.
    """
    iteration_s = prefills.decode_s / (1 - min(SHARE_MAX, work.share))
    prompts_s = iteration_s - prefills.decode_s
    some = 1 - math.exp(-work.rate_rps * iteration_s)
    return prefills.decode_s + _queue_s(some, prompts_s, iteration_s * work.square_s + prompts_s**2)


def _prompts(workload: Workload) -> FloatArray:
    """Return equally likely prompt lengths: log-normal with the mean and variance of the class."""
    return workload.prompt_tokens * _lognormal(_NORMAL, workload.prompt_cv2)


def _cached(workload: Workload) -> FloatArray | float:
    """Return equally likely cached shares of a prompt: of some something, of the others nothing."""
    if not workload.cached_share:
        return 0.0
    hits = _SHARES[_SHUFFLED_FOR_HITS] < max(workload.hit_share, workload.cached_share)
    shares = hits * (workload.cached_share / max(1 / STRATA, float(hits.mean())))
    return np.asarray(np.minimum(1.0, shares), dtype=np.float64)


def _lognormal(normal: FloatArray, cv2: float) -> FloatArray:
    """Return log-normal values with mean 1 for standard normal ones, scaled to keep the mean exact."""
    values = np.exp(normal * np.sqrt(np.log1p(cv2)))
    return np.asarray(values / values.mean())


def _queue_s(share: float, mean_s: float, square: float) -> FloatArray:
    """Return waits: 0 with probability 1 - share, else log-normal; given their mean and second moment."""
    values = np.zeros(STRATA)
    busy = _SHARES - 1 + share > 0
    if not busy.any() or mean_s <= 0:
        return np.full(STRATA, mean_s)
    inner_s = mean_s / share
    cv2 = max(0.05, square / share / inner_s**2 - 1)
    shares = (_SHARES[busy] - 1 + share) / share
    values[busy] = _lognormal(np.array([NormalDist().inv_cdf(each) for each in shares]), cv2)
    return np.asarray(values * (mean_s * STRATA / values.sum()))
