"""Steady-state throughput of an instance: Theta, epsilon, d and P of QLM, equations 1 to 4.

In the steady state each request that ends frees a batch slot for the next. A whole run also has the end of
the queue, where the batch is not full: its tokens per second are no estimate of Theta.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.iteration_costs import load_of, mean_times
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.workload import Workload

KV_WATERMARK: Final = 0.01
"""Share of the KV cache that agents and vLLM keep free when they admit a request to the batch."""

GROWTH_BLOCKS: Final = 1
"""KV blocks that agents keep free per running request, so that decoding does not cause preemption at once."""

_PREFILL_SHARE_MAX: Final = 0.8
"""Bound of the share of iterations with a prefill: above it, the batch is practically full."""

_INSTANT_S: Final = 1e-12
"""Avoids division by zero, seconds."""

_ROUNDS: Final = 8
"""Iterations of the fixed point of batch and prompt chunks; each at least halves the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """An engine in steady state, with a full batch of a workload or with a given batch size.

    Attributes:
        batch: Mean number of requests in the batch: B.
        request_s: Seconds between the ends of two requests: mu / Theta.
        iteration_s: Time of one iteration with prefills of other requests: epsilon d, the TPOT.
        decode_s: Time of one iteration without prefills: d.
        alone_s: Time of one iteration of a batch of one.
        prefill_s: Time from a batch slot to the first token: P. With asynchronous scheduling it begins with
            an iteration that was put together before the slot was free.
        own_prefill_s: The part of P without the queue for prefill.
        prompt_s: Prefill of one request as a part of `request_s`.
        first_prompts_saving_s: Time saved by the first prompts of an empty batch, against `prompt_s` each:
            they are computed together and delay no decodes.
        kv_share: Share in [0, 1] of the decode cost that depends on a request's KV occupancy: 1 where the KV
            cache bounds the batch, else the share of an iteration that reads the cache.
        queue_s: Delay of the first token by prefills of others, in a batch that is not full.
        uncertainty: Relative standard deviation common to all these times.
    """

    workload: Workload
    batch: float
    request_s: float
    iteration_s: float
    decode_s: float
    alone_s: float
    prefill_s: float
    prompt_s: float = 0.0
    first_prompts_saving_s: float = 0.0
    own_prefill_s: float = 0.0
    kv_share: float = 0.0
    queue_s: float = 0.0
    uncertainty: float = 0.0

    @property
    def prompts_before_s(self) -> float:
        """The part of `prefill_s` that the prompts of others before its own take, in this batch."""
        return self.prefill_s - self.own_prefill_s

    @property
    def service(self) -> Normal:
        """Service time of one request, P + D_q of equations 1 and 4, seconds."""
        steps = Normal(self.workload.output.mean - 1, self.workload.output.var)
        return Normal(self.prefill_s) + steps.scaled(self.iteration_s)

    @property
    def prompt_cv2(self) -> float:
        """Squared coefficient of variation of the computed part of a prompt; 0 without prompts."""
        return self.workload.computed_cv2

    @property
    def work_cv2(self) -> float:
        """Squared coefficient of variation of the decode cost of one request."""
        return self.workload.cost_cv2(self.kv_share)

    @property
    def work_uncertainty(self) -> float:
        """Relative standard deviation of the estimated mean decode cost of the class.

        The uncertainty of the mean output, scaled by the ratio of `work_cv2` to that of the output lengths.
        """
        output = self.workload.output
        stretch = self.work_cv2 * output.mean**2 / output.var if output.var else 1.0
        return math.sqrt(self.workload.mean_var * stretch) / output.mean

    @property
    def fill_s(self) -> float:
        """Time by which a request starts sooner in an initially empty batch than behind a full one, seconds.

        The n-th request starts when the B slots have done the work of the first n, less what is left then:
        its own O_n, and R in each other slot. That takes E[K_n] = (n mu - mu - (B - 1) R) / B iterations
        (Wald), against n mu / B behind a full batch. R is the residual length of an answer at a random
        time, a = E[O^2] / 2 mu, if that is less than mu; else mu at first (`residual_transient_share`).
        All prompts must be computed either way.
        """
        output = self.workload.output
        left = (self.batch - 1) * min(1.0, self.workload.age_tokens / output.mean) + 1
        return max(0.0, left * (self.request_s - self.prompt_s) + self.first_prompts_saving_s)

    @property
    def residual_transient_share(self) -> float:
        """Relative speed-up of the first ends of a batch that started empty, in [0, 1].

        (B - 1) (a - mu) more tokens are left once long answers have accumulated (`Workload.excess_tokens`).
        """
        if not self.residual_transient_s:
            return 0.0
        return (
            (self.batch - 1)
            / self.batch
            * self.workload.excess_tokens
            / self.workload.residual_transient_tokens
        )

    @property
    def residual_transient_s(self) -> float:
        """Time constant of that transient, seconds of decodes."""
        return self._decode_step_s * self.workload.residual_transient_tokens

    @property
    def age_transient_share(self) -> float:
        """Relative speed-up of decodes while the requests of a new batch have no output yet, in [0, 1].

        Where the KV cache bounds the batch, more requests fit instead, with the same effect.
        """
        return self.kv_share * max(0.0, 1 - self.workload.prompt_tokens / self.workload.context_tokens)

    @property
    def age_transient_s(self) -> float:
        """Time constant of that transient, seconds of decodes; see `Workload.age_transient_tokens`."""
        return self._decode_step_s * self.workload.age_transient_tokens

    @property
    def _decode_step_s(self) -> float:
        return self.batch * (self.request_s - self.prompt_s) / self.workload.output.mean

    def step_s(self, batch: FloatArray) -> FloatArray:
        """Return the time of one iteration with `batch` requests, elementwise; linear between one and all."""
        share = np.clip((batch - 1) / max(self.batch - 1, 1e-9), 0.0, 1.0)
        return np.asarray(self.alone_s + share * (self.iteration_s - self.alone_s), dtype=np.float64)

    def corrected(self, correction: Correction) -> "SteadyState":
        """Return all times scaled by the correction of the instance."""
        factor = correction.factor
        return replace(
            self,
            request_s=self.request_s * factor,
            iteration_s=self.iteration_s * factor,
            decode_s=self.decode_s * factor,
            alone_s=self.alone_s * factor,
            prefill_s=self.prefill_s * factor,
            prompt_s=self.prompt_s * factor,
            first_prompts_saving_s=self.first_prompts_saving_s * factor,
            own_prefill_s=self.own_prefill_s * factor,
            queue_s=self.queue_s * factor,
            uncertainty=math.hypot(self.uncertainty, correction.uncertainty),
        )


def steady_state(profile: Profile, workload: Workload, *, batch: float | None = None) -> SteadyState:
    """Return the steady state of continuous batching with chunked prefill.

    A request takes max(1, p / chunk) iterations for its prompt of p tokens and one for each of its O - 1
    further tokens. Of a batch of B, B over that number end per iteration, limited by the token budget. An
    iteration costs `IterationTime`, in the mean over the prompts in it (`mean_times`).

    With asynchronous scheduling an iteration is put together when the one before starts. A request that ends
    then keeps its slot for one more iteration, and is computed once more: the engine knows too late.

    Args:
        profile: Profile of the model on the accelerator of the instance.
        workload: A class, or a mixture of classes.
        batch: Requests in the batch, if known; else the number that slots and KV cache allow.
    """
    full = full_batch(profile, workload)
    slots = max(1.0, full if batch is None else min(batch, profile.seqs_max))
    prompt, steps = (
        max(1.0, workload.computed_share * workload.prompt_tokens),
        max(0.0, workload.output.mean - 1),
    )
    empty, chunks, ends = _pace(profile, slots, prompt, steps)
    # Where the token budget is the bottleneck, all slots are taken and requests queue for prefill (Little).
    prefill_iterations = slots / ends - steps - empty
    decodes = min(slots, ends * (steps + empty))
    load = load_of(profile, workload, ends=ends, chunks=chunks, decodes=decodes)
    context_tokens = workload.context_tokens
    times = mean_times(profile.iteration, load, context_tokens)
    mean_s, decode_s = times.mean_s, times.decode_s
    extra_s = mean_s - min(1.0, decodes) * decode_s
    own_s = max(mean_s, times.own_s)
    # A request decodes beside the prompts of the others only.
    iteration_s = max(decode_s, mean_s - extra_s / slots)
    outside_s = profile.request_ms / 1000
    return SteadyState(
        workload=workload,
        batch=slots,
        request_s=mean_s / ends,
        iteration_s=iteration_s,
        decode_s=decode_s,
        alone_s=min(iteration_s, profile.decode_ms(1, context_tokens) / 1000),
        prefill_s=outside_s + (empty + prefill_iterations - chunks) * mean_s + chunks * own_s,
        own_prefill_s=outside_s + empty * mean_s + chunks * own_s,
        queue_s=_prefill_queue_s(workload, ends * chunks, chunks * times.single_s),
        prompt_s=extra_s / ends,
        first_prompts_saving_s=slots * extra_s / ends - _first_prompts_s(profile, workload, slots),
        kv_share=1.0 if full < profile.seqs_max else _kv_share(profile, workload, decodes, decode_s),
    )


def _pace(profile: Profile, slots: float, prompt: float, steps: float) -> tuple[float, float, float]:
    """Return iterations after the end, iterations of one prompt, and requests that end per iteration."""
    budget, empty = profile.batched_tokens_max, float(profile.async_scheduling)
    chunks, decodes = max(1.0, prompt / budget), steps + empty
    for _ in range(_ROUNDS):
        ends = min(slots / (decodes + chunks), budget / (prompt + decodes))
        needed = max(1.0, prompt / max(1.0, budget - ends * decodes))
        if needed == chunks:
            break
        chunks = (chunks + needed) / 2
    return empty, chunks, min(slots / (decodes + chunks), budget / (prompt + decodes))


def decodes_from_empty_s(
    decodes_s: FloatArray, *transients: tuple[npt.ArrayLike, npt.ArrayLike]
) -> FloatArray:
    """Return the time of decodes in a batch that started empty; they take `decodes_s` in steady state.

    After y seconds they are faster by v exp(-y / s), so they take y - v s (1 - exp(-y / s)) in total.

    Args:
        decodes_s: 0 or more, elementwise.
        transients: Pairs (v, s), applied in this order: `residual_transient_share` and
            `residual_transient_s`, then `age_transient_share` and `age_transient_s` of `SteadyState`. The
            shares v are multiplied by the share of the batch that started empty.
    """
    for share, scale_s in transients:
        speedup, scale = (np.asarray(each, dtype=np.float64) for each in (share, scale_s))
        decodes_s = decodes_s + speedup * scale * np.expm1(-decodes_s / np.maximum(scale, _INSTANT_S))
    return np.asarray(decodes_s, dtype=np.float64)


def _prefill_queue_s(workload: Workload, busy: float, own_s: float) -> float:
    """Return the mean wait for prefills of other requests, seconds (Pollaczek and Khinchine)."""
    share = min(busy, _PREFILL_SHARE_MAX)
    return share * own_s * (1 + workload.computed_cv2) / 2 / (1 - share)


def _first_prompts_s(profile: Profile, workload: Workload, slots: float) -> float:
    """Return the delay that the first prompts of an empty batch cause to the requests behind them, seconds.

    The token budget computes several prompts together. The slots start over k iterations, on average
    (k - 1) / 2 after the first. Those iterations decode for only half of the slots.
    """
    of, prompt = profile.iteration, max(1.0, workload.computed_share * workload.prompt_tokens)
    iterations = max(1.0, slots * prompt / profile.batched_tokens_max)
    floor_s = profile.decode_ms(1, 0.0) / 1000
    together_ms = of.ms(
        tokens=slots * prompt / iterations,
        context_tokens=0.0,
        sequences=slots / iterations,
        pairs=slots / iterations * workload.prompt_pairs,
        admitted=slots / iterations,
        mixed=True,
    )
    return iterations * (together_ms / 1000 - floor_s) + (iterations - 1) / 2 * floor_s


def _kv_share(profile: Profile, workload: Workload, decodes: float, decode_s: float) -> float:
    reading_s = profile.iteration.kv_ms * decodes * workload.context_tokens / 1000
    return min(1.0, reading_s / decode_s) if decode_s else 0.0


def full_batch(profile: Profile, workload: Workload) -> float:
    """Return the mean size of a full batch, bounded by slots and KV cache; at least 1.

    Each request occupies its context, half of a partly filled block, and the blocks kept free for growth.
    The next request waits until its whole prompt fits, so on average half a prompt is free.
    """
    occupied = min(profile.context_tokens, workload.context_tokens)
    occupied += (0.5 + GROWTH_BLOCKS) * profile.block_tokens
    usable = (1 - KV_WATERMARK) * profile.kv_tokens - workload.prompt_tokens / 2
    return max(1.0, min(profile.seqs_max, usable / occupied))
