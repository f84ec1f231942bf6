"""How fast an instance serves a workload once its batch is full: Theta, epsilon, d and P of equations 1-4.

Only the steady part is meant, in which each request that ends makes room for the next. A draining queue
has fewer requests in the batch at its end, so that the tokens per second of a whole run are no estimate
of Theta.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import EDGES, FloatArray, LengthPredictive
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profile import Profile

BATCHED_TOKENS_MAX: Final = 2048
"""Tokens computed in one iteration at most; default `--max-num-batched-tokens` of vLLM's API server."""

PRIOR_LOG_SD: Final = 0.1
"""How far a profile is off before anything was observed: standard deviation of log(actual / predicted)."""

OBSERVED_LOG_SD: Final = 0.2
"""Spread of one observed ratio around an instance's true one, likewise."""

INFLUENCE_MAX: Final = 2.0
"""An observation further off than so many standard deviations counts as if it were just there."""

FACTOR_MAX: Final = 4.0
"""An instance counts as at most so much slower, or faster, than its profile says."""

_ROUNDS: Final = 8
"""Rounds of the fixed point of places and chunks; each halves the error at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the requests of a class ask of an engine.

    Attributes:
        prompt_tokens: Mean prompt length to be computed (cached prefixes left out); 0 or more.
        output: Length of one answer, tokens; mean 1 or more.
        mean_doubt: Variance of the class's true mean length around `output.mean`, tokens squared.
        prompt_var: Variance of the prompt lengths, tokens squared.
    """

    prompt_tokens: float
    output: Normal
    mean_doubt: float = 0.0
    prompt_var: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prompt_tokens) and self.prompt_tokens >= 0):
            raise InvalidValueError("prompt_tokens", self.prompt_tokens, "a number, 0 or more")
        if self.output.mean < 1:
            raise InvalidValueError("output.mean", self.output.mean, "at least 1")
        for name in ("mean_doubt", "prompt_var"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InvalidValueError(name, getattr(self, name), "a number, 0 or more")

    @property
    def context_tokens(self) -> float:
        """Tokens in the KV cache of a request met at a random moment of its run.

        Long answers are met more often, so the mean age is E[O^2] / 2 E[O], not half the mean length.
        """
        return self.prompt_tokens + (self.output.mean + self.output.var / self.output.mean) / 2


def class_workload(
    lengths: LengthPredictive,
    prompt_tokens: float,
    max_tokens: float,
    *,
    prompt_var: float = 0.0,
    max_var: float = 0.0,
) -> Workload:
    """Describe a class.

    Args:
        lengths: Posterior of its output lengths.
        prompt_tokens: Its mean prompt.
        max_tokens: Its mean output limit.
        prompt_var: Variance of its prompts, tokens squared.
        max_var: Variance of its limits, likewise: where all answers reach them, it is that of the answers.
    """
    output = lengths.length(max_tokens)
    # Law of total variance: the mean of min(O, cap) changes with the cap by P(O > cap).
    reaches = float(np.interp(max_tokens, EDGES, lengths.survival))
    return Workload(
        prompt_tokens=prompt_tokens,
        output=Normal(max(1.0, output.mean), output.var + reaches**2 * max_var),
        mean_doubt=lengths.mean_doubt(max_tokens),
        prompt_var=prompt_var,
    )


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
        prompt_s: What the prefill of one request adds to `request_s`.
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
        prompt = self.workload.prompt_tokens
        return self.workload.prompt_var / prompt**2 if prompt else 0.0

    @property
    def fill_s(self) -> float:
        """How much sooner a request gets its place if the batch starts empty, than behind a running one.

        B answers begun at once end like a superposition of B renewal processes without a past: after
        a time t there were B (t / mu + (c^2 - 1) / 2) ends instead of B t / mu, and the first B waited
        for none; c is the coefficient of variation of the lengths. Their prompts must be computed either way.
        """
        output = self.workload.output
        first = self.batch * (1 + output.var / output.mean**2) / 2
        return first * (self.request_s - self.prompt_s)

    def step_s(self, batch: FloatArray) -> FloatArray:
        """One iteration when `batch` requests are left, elementwise; linear, as equation 15 is."""
        share = np.clip((batch - 1) / max(self.batch - 1, 1e-9), 0.0, 1.0)
        return np.asarray(self.alone_s + share * (self.iteration_s - self.alone_s), dtype=np.float64)

    def corrected(self, correction: "Correction") -> "SteadyState":
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
        batch: Requests in the batch, where that is known (below saturation); else as many as places and
            KV cache allow.
        batched_tokens_max: Tokens computed in one iteration at most.
    """
    places = full_batch(profile, workload) if batch is None else min(batch, full_batch(profile, workload))
    places = max(1.0, places)
    prompt, steps = max(1.0, workload.prompt_tokens), max(0.0, workload.output.mean - 1)
    chunks = max(1.0, prompt / batched_tokens_max)
    for _ in range(_ROUNDS):
        ends = min(places / (steps + chunks), batched_tokens_max / (prompt + steps))
        room = max(1.0, batched_tokens_max - ends * steps)
        chunks = (chunks + max(1.0, prompt / room)) / 2
    ends = min(places / (steps + chunks), batched_tokens_max / (prompt + steps))
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
        prefill_s=chunks * max(iteration_s, decode_s + prefill_s - shared_s),
        prompt_s=extra_s / ends,
    )


def full_batch(profile: Profile, workload: Workload) -> float:
    """Requests that fit at once on average: bounded by places and by KV cache; at least 1.

    Each takes its present context, and half a block that is not full.
    """
    held = min(profile.context_tokens, workload.context_tokens) + profile.block_tokens / 2
    return max(1.0, min(profile.seqs_max, profile.kv_tokens / held))


def mixture(workloads: Sequence[tuple[float, Workload]]) -> Workload:
    """Blend workloads that share a batch, each with its share of the requests.

    Raises:
        InvalidValueError: No share is positive, or one is negative.
    """
    total = sum(share for share, _ in workloads)
    if not total > 0 or any(share < 0 for share, _ in workloads):
        raise InvalidValueError("shares", [share for share, _ in workloads], "0 or more, one positive")
    parts = [(share / total, workload) for share, workload in workloads]
    mean = sum(share * w.output.mean for share, w in parts)
    square = sum(share * (w.output.var + w.output.mean**2) for share, w in parts)
    prompt = sum(share * w.prompt_tokens for share, w in parts)
    prompt_square = sum(share * (w.prompt_var + w.prompt_tokens**2) for share, w in parts)
    return Workload(
        prompt_tokens=prompt,
        output=Normal(max(1.0, mean), max(0.0, square - mean**2)),
        mean_doubt=sum(share**2 * w.mean_doubt for share, w in parts),
        prompt_var=max(0.0, prompt_square - prompt**2),
    )


def _prefill_s(profile: Profile, tokens: float) -> float:
    return profile.prefill_ms(1, tokens) / 1000


@dataclass(frozen=True, slots=True)
class Correction:
    """How much slower one instance is than its profile says, learned from (predicted, actual) pairs.

    Logarithms of the ratios are normal around the instance's own, with a conjugate normal prior at 1.

    Attributes:
        log_ratio: Posterior mean of log(actual / predicted).
        log_var: Posterior variance.
    """

    log_ratio: float = 0.0
    log_var: float = PRIOR_LOG_SD**2

    def __post_init__(self) -> None:
        if not abs(self.log_ratio) <= math.log(FACTOR_MAX) + 1e-9:
            raise InvalidValueError("log_ratio", self.log_ratio, f"at most log {FACTOR_MAX:g} either way")
        if not 0 < self.log_var <= 1:
            raise InvalidValueError("log_var", self.log_var, "a number above 0, up to 1")

    @property
    def factor(self) -> float:
        """By what predicted times are to be multiplied."""
        return math.exp(self.log_ratio)

    @property
    def doubt(self) -> float:
        """Relative standard deviation of that factor."""
        return math.sqrt(self.log_var)

    def observed(self, predicted_s: float, actual_s: float, *, keep: float = 0.99) -> "Correction":
        """Learn from one duration.

        Args:
            predicted_s: As predicted without any correction; positive. Use times over many requests of
                a full batch, the drain of a group for instance.
            actual_s: As it came out; positive.
            keep: What the observation leaves of the certainty so far, in (0, 1]; an instance may drift.

        Raises:
            InvalidValueError: A time is not positive, or `keep` not in (0, 1].
        """
        for name, value in (("predicted_s", predicted_s), ("actual_s", actual_s)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidValueError(name, value, "a positive number")
        if not 0 < keep <= 1:
            raise InvalidValueError("keep", keep, "a number above 0, up to 1")
        prior_var = min(self.log_var / keep, PRIOR_LOG_SD**2)
        gain = prior_var / (prior_var + OBSERVED_LOG_SD**2)
        bound = INFLUENCE_MAX * math.sqrt(prior_var + OBSERVED_LOG_SD**2)
        surprise = math.log(actual_s) - math.log(predicted_s) - self.log_ratio
        moved = self.log_ratio + gain * min(bound, max(-bound, surprise))
        limit = math.log(FACTOR_MAX)
        return Correction(min(limit, max(-limit, moved)), (1 - gain) * prior_var)
