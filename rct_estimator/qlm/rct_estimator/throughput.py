"""How fast an instance serves a workload once its batch is full: Theta, epsilon, d and P of equations 1-4.

Only the steady part is meant, in which each request that ends makes room for the next. A draining queue
has fewer requests in the batch at its end, so that the tokens per second of a whole run are no estimate
of Theta.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.workload import Workload

BATCHED_TOKENS_MAX: Final = 2048
"""Tokens computed in one iteration at most; default `--max-num-batched-tokens` of vLLM's API server."""

KV_WATERMARK: Final = 0.01
"""Share of the KV cache that stays free before a request is given its place, by agents and by vLLM."""

GROWTH_BLOCKS: Final = 1
"""Blocks that agents keep free per running request, so that decoding does not run into preemption at once."""

_PREFILL_SHARE_MAX: Final = 0.8
"""Beyond this share of iterations with a prefill a batch is as good as full: queues end with its places."""

_INSTANT_S: Final = 1e-12
"""Shorter than anything that is computed with."""

_ROUNDS: Final = 8
"""Rounds of the fixed point of places and chunks; each halves the error at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """An engine whose batch is as full as it gets with a workload (or as full as was said).

    Attributes:
        workload: What it serves.
        batch: Requests in the batch, on average.
        request_s: Seconds from one request's end to the next one's: mu / Theta.
        iteration_s: One iteration, prefills of others included: epsilon d, the time per output token.
        decode_s: One iteration without prefills: d.
        alone_s: One iteration of a batch of one.
        prefill_s: From a place in the batch to the first token: P.
        own_prefill_s: The part of it that goes with its own prompt; the rest is spent behind others'.
        prompt_s: What the prefill of one request adds to `request_s`.
        together_s: How much less than `prompt_s` each the prompts of an empty batch's first requests take,
            which are computed together and hold no decodes up.
        kv_share: How much of the rest depends on what requests hold of the KV cache, in [0, 1]: all of it
            where the cache bounds the batch, else the share of an iteration that reading it takes.
        queue_s: Of a batch that is not full: how much later the first token is because of others' prefills.
        doubt: Relative standard deviation of all these times.
    """

    workload: Workload
    batch: float
    request_s: float
    iteration_s: float
    decode_s: float
    alone_s: float
    prefill_s: float
    prompt_s: float = 0.0
    together_s: float = 0.0
    own_prefill_s: float = 0.0
    kv_share: float = 0.0
    queue_s: float = 0.0
    doubt: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second: Theta."""
        return self.workload.output.mean / self.request_s

    @property
    def inefficiency(self) -> float:
        """Epsilon of equation 4: how much prefills of others lengthen the decode, dimensionless."""
        return self.iteration_s / self.decode_s

    @property
    def service(self) -> Normal:
        """Time of one request in the batch, P + D_q of equations 1 and 4, seconds."""
        steps = Normal(self.workload.output.mean - 1, self.workload.output.var)
        return Normal(self.prefill_s) + steps.scaled(self.iteration_s)

    @property
    def prompt_cv2(self) -> float:
        """Squared coefficient of variation of the prompts, 0 where there are none."""
        return self.workload.prompt_cv2

    @property
    def work_cv2(self) -> float:
        """Squared coefficient of variation of what the decodes of one request cost the full batch."""
        return self.workload.cost_cv2(self.kv_share)

    @property
    def work_doubt(self) -> float:
        """Relative standard deviation of the class's mean of that cost around the estimate.

        The doubt about the mean answer, stretched as `work_cv2` is over the answers' own.
        """
        output = self.workload.output
        stretch = self.work_cv2 * output.mean**2 / output.var if output.var else 1.0
        return math.sqrt(self.workload.mean_doubt * stretch) / output.mean

    @property
    def fill_s(self) -> float:
        """How much sooner a request gets its place if the batch starts empty, than behind a running one.

        The n-th gets its place when the B places have done what the first n ask for, less what is left
        then: its own O_n, and R in each of the others, E[K_n] = (n mu - mu - (B - 1) R) / B iterations
        (Wald), where behind a running batch it is n mu / B. R is that of answers met at a random moment,
        a = E[O^2] / 2 mu, if that is less than mu, and else mu at first: see `piling_share`. The prompts of
        all must be computed either way.
        """
        output = self.workload.output
        left = (self.batch - 1) * min(1.0, self.workload.age_tokens / output.mean) + 1
        return max(0.0, left * (self.request_s - self.prompt_s) + self.together_s)

    @property
    def piling_share(self) -> float:
        """By what share the first ends of a batch that began empty come faster, in [0, 1].

        (B - 1) (a - mu) tokens more are left once long answers have piled up (`Workload.excess_tokens`).
        """
        if not self.piling_s:
            return 0.0
        return (self.batch - 1) / self.batch * self.workload.excess_tokens / self.workload.piling_tokens

    @property
    def piling_s(self) -> float:
        """Time constant with which that wears off, seconds of decodes."""
        return self._decode_step_s * self.workload.piling_tokens

    @property
    def young_share(self) -> float:
        """By what share decodes are faster while the requests of a batch hold no answers yet, in [0, 1].

        Where the KV cache bounds the batch, more requests fit instead, which comes to the same.
        """
        return self.kv_share * max(0.0, 1 - self.workload.prompt_tokens / self.workload.context_tokens)

    @property
    def settling_s(self) -> float:
        """Time constant with which that wears off, seconds of decodes; see `Workload.settling_tokens`."""
        return self._decode_step_s * self.workload.settling_tokens

    @property
    def _decode_step_s(self) -> float:
        return self.batch * (self.request_s - self.prompt_s) / self.workload.output.mean

    def step_s(self, batch: FloatArray) -> FloatArray:
        """One iteration when `batch` requests are left, elementwise; linear, as equation 15 is."""
        share = np.clip((batch - 1) / max(self.batch - 1, 1e-9), 0.0, 1.0)
        return np.asarray(self.alone_s + share * (self.iteration_s - self.alone_s), dtype=np.float64)

    def corrected(self, correction: Correction) -> "SteadyState":
        """Stretch all times by what was observed on the instance."""
        factor = correction.factor
        return replace(
            self,
            request_s=self.request_s * factor,
            iteration_s=self.iteration_s * factor,
            decode_s=self.decode_s * factor,
            alone_s=self.alone_s * factor,
            prefill_s=self.prefill_s * factor,
            prompt_s=self.prompt_s * factor,
            together_s=self.together_s * factor,
            own_prefill_s=self.own_prefill_s * factor,
            queue_s=self.queue_s * factor,
            doubt=math.hypot(self.doubt, correction.doubt),
        )


def steady_state(
    profile: Profile,
    workload: Workload,
    *,
    batch: float | None = None,
    batched_tokens_max: int = BATCHED_TOKENS_MAX,
) -> SteadyState:
    """Work out the steady state of continuous batching with chunked prefill.

    A request takes max(1, p / chunk) iterations for its prompt of p tokens and one for each of its
    O - 1 further tokens. With B in the batch, B over that many iterations end per iteration; no
    more than the token budget allows. One iteration costs what its decodes cost (equation 15 of SLO-aware
    annealing) and its share of a prefill (equation 14), but reads the weights once.

    Args:
        profile: Of the model on the instance's accelerator.
        workload: Means of the class, or of a mixture.
        batch: Requests in the batch, where that is known; else as many as places and KV cache allow.
        batched_tokens_max: Tokens computed in one iteration at most.
    """
    places = max(1.0, full_batch(profile, workload) if batch is None else min(batch, profile.seqs_max))
    prompt, steps = max(1.0, workload.prompt_tokens), max(0.0, workload.output.mean - 1)
    chunks = max(1.0, prompt / batched_tokens_max)
    for _ in range(_ROUNDS):
        ends = min(places / (steps + chunks), batched_tokens_max / (prompt + steps))
        room = max(1.0, batched_tokens_max - ends * steps)
        chunks = (chunks + max(1.0, prompt / room)) / 2
    ends = min(places / (steps + chunks), batched_tokens_max / (prompt + steps))
    # Where the token budget is what bounds, all places are taken, and requests queue for their prefill.
    in_prefill_for = places / ends - steps
    decodes = min(places, ends * steps)
    decode_s = profile.decode_ms(max(1.0, decodes), workload.context_tokens) / 1000
    prefill_s = _prefill_s(profile, prompt / chunks)
    # Requests start at random, the chunks of one follow each other.
    in_prefill = min(1.0, chunks * (1 - math.exp(-ends)))
    shared_s = min(profile.prefill.delta, profile.decode.delta) / 1000
    # Several prefills of one iteration share its constant: it is paid as often as there is any.
    own_s = prefill_s - profile.prefill.delta / 1000
    extra_s = ends * chunks * own_s + in_prefill * (
        profile.prefill.delta / 1000 - min(1.0, decodes) * shared_s
    )
    if decodes < 1:
        decode_s *= decodes
    iteration_s = decode_s + extra_s
    return SteadyState(
        workload=workload,
        batch=places,
        request_s=iteration_s / ends,
        iteration_s=iteration_s,
        decode_s=decode_s if decodes >= 1 else iteration_s,
        alone_s=min(iteration_s, profile.decode_ms(1, workload.context_tokens) / 1000),
        prefill_s=in_prefill_for * max(iteration_s, decode_s + prefill_s - shared_s),
        own_prefill_s=chunks * max(iteration_s, decode_s + prefill_s - shared_s),
        queue_s=_prefill_queue_s(workload, ends * chunks, chunks * (decode_s + prefill_s - shared_s)),
        prompt_s=extra_s / ends,
        together_s=places * extra_s / ends - _first_prompts_s(profile, prompt, places, batched_tokens_max),
        kv_share=_kv_share(profile, workload, decodes, decode_s),
    )


def settled_s(decodes_s: FloatArray, *savings: tuple[npt.ArrayLike, npt.ArrayLike]) -> FloatArray:
    """Time that decodes take in a batch that began empty, where those of a settled one take `decodes_s`.

    After y seconds they are faster by the share v exp(-y / s): y - v s (1 - exp(-y / s)) in all.

    Args:
        decodes_s: Not negative, elementwise.
        savings: Pairs of v and s, one applied after the other: `SteadyState.piling_share` and `piling_s`,
            `young_share` and `settling_s`; the shares times the share of the batch that began empty.
    """
    for share, scale_s in savings:
        young, scale = (np.asarray(each, dtype=np.float64) for each in (share, scale_s))
        decodes_s = decodes_s + young * scale * np.expm1(-decodes_s / np.maximum(scale, _INSTANT_S))
    return np.asarray(decodes_s, dtype=np.float64)


def _prefill_queue_s(workload: Workload, busy: float, own_s: float) -> float:
    """Mean wait for the prefills of others in the batch, seconds (Pollaczek and Khinchine)."""
    share = min(busy, _PREFILL_SHARE_MAX)
    return share * own_s * (1 + workload.prompt_cv2) / 2 / (1 - share)


def _first_prompts_s(profile: Profile, prompt: float, places: float, batched_tokens_max: int) -> float:
    """By how much the prompts of an empty batch's first requests put off the places that come after them.

    As many as the budget lets are computed together, and places begin over k iterations, (k - 1) / 2 later
    than the first on average. Those iterations decode for half of the places only, but for their constant.
    """
    iterations = max(1.0, places * prompt / batched_tokens_max)
    shared_s = min(profile.prefill.delta, profile.decode.delta) / 1000
    each_s = profile.prefill_ms(places / iterations, prompt) / 1000 - shared_s
    return iterations * each_s + (iterations - 1) / 2 * profile.decode.delta / 1000


def _kv_share(profile: Profile, workload: Workload, decodes: float, decode_s: float) -> float:
    if full_batch(profile, workload) < profile.seqs_max:
        return 1.0
    per_token_s = (profile.decode.alpha * decodes + profile.decode.gamma) / 1000
    return min(1.0, per_token_s * workload.context_tokens / decode_s) if decode_s else 0.0


def full_batch(profile: Profile, workload: Workload) -> float:
    """Requests that fit at once on average: bounded by places and by KV cache; at least 1.

    Each takes its present context, half a block that is not full, and what is kept free for its growth.
    The next one waits until its whole prompt fits; on average about half a prompt is free.
    """
    held = min(profile.context_tokens, workload.context_tokens)
    held += (0.5 + GROWTH_BLOCKS) * profile.block_tokens
    usable = (1 - KV_WATERMARK) * profile.kv_tokens - workload.prompt_tokens / 2
    return max(1.0, min(profile.seqs_max, usable / held))


def _prefill_s(profile: Profile, tokens: float) -> float:
    return profile.prefill_ms(1, tokens) / 1000
