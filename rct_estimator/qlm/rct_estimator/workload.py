"""Demand of a class of requests, or of a mixture of classes, on an engine: means and variances."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.domain.values import value
from qlm.rct_estimator.length_predictive import EDGES, TOKENS_MAX, LengthPredictive
from qlm.rct_estimator.normal import Normal

_CV2_SHARE_MIN: Final = 0.25
"""Lower bound of the cost variation, as a share of that of the output lengths. It takes effect where long
answers have short prompts."""

_NO_PROMPT: Final = 1e-6
"""Mean prompts below this count as none, tokens."""


@value
class Workload:
    """Demand of the requests of a class on an engine.

    Attributes:
        prompt_tokens: Mean prompt length p, with cached prefixes; 0 or more.
        output: Length O of one answer, tokens; its mean mu is 1 or more.
        mean_var: Variance of the true mean length of the class around `output.mean`, tokens squared.
        prompt_var: Variance of the prompt lengths, tokens squared.
        prompt_bias: E[p O] / (E[p] E[O]): mean prompt of requests in the batch over the mean prompt. Requests
            with long answers are in the batch more often (length-biased sampling).
        output_cube: E[O^3], tokens cubed; None assumes log-normal answers.
        cost_dispersion: Measured variance of O (p + O / 2) over the one that the moments above imply.
        cached_share: Share h in [0, 1] of the prompt tokens that the prefix cache holds: not computed, but in
            the KV cache.
        hit_share: Share q of the prompts of which it holds something, then h / q of each.
    """

    prompt_tokens: float
    output: Normal
    mean_var: float = 0.0
    prompt_var: float = 0.0
    prompt_bias: float = 1.0
    output_cube: float | None = None
    cost_dispersion: float = 1.0
    cached_share: float = 0.0
    hit_share: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prompt_tokens) and self.prompt_tokens >= 0):
            raise InvalidValueError("prompt_tokens", self.prompt_tokens, "a number, 0 or more")
        if self.output.mean < 1:
            raise InvalidValueError("output.mean", self.output.mean, "at least 1")
        for name in ("mean_var", "prompt_var", "prompt_bias", "cost_dispersion"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InvalidValueError(name, getattr(self, name), "a number, 0 or more")
        if not 0 <= self.cached_share <= 1:
            raise InvalidValueError("cached_share", self.cached_share, "a number from 0 to 1")
        if not self.cached_share <= self.hit_share <= 1:
            raise InvalidValueError("hit_share", self.hit_share, "a number from cached_share to 1")
        if self.output_cube is not None and not (math.isfinite(self.output_cube) and self.output_cube > 0):
            raise InvalidValueError("output_cube", self.output_cube, "a positive number, or none")

    @property
    def computed_share(self) -> float:
        """Share of the tokens of a prompt that the engine computes, 1 - h."""
        return 1 - self.cached_share

    @property
    def prompt_pairs(self) -> float:
        """Mean pairs of tokens that the computed part of a prompt compares, (1 - h^2 / q) E[p^2] / 2.

        Computed tokens compare with the cached ones too.
        """
        square = max(1.0, self.prompt_tokens) ** 2 + self.prompt_var
        return (1 - self._cached_square) * square / 2

    @property
    def computed_var(self) -> float:
        """Variance of the computed tokens of a prompt: E[p^2] (1 - 2 h + h^2 / q) - (1 - h)^2 p^2."""
        if not self.cached_share:
            return self.prompt_var
        square = self.prompt_tokens**2
        kept = 1 - 2 * self.cached_share + self._cached_square
        return max(0.0, kept * (square + self.prompt_var) - self.computed_share**2 * square)

    @property
    def computed_cv2(self) -> float:
        """Squared coefficient of variation of the computed tokens of a prompt; 0 without any."""
        computed = self.computed_share * self.prompt_tokens
        return self.computed_var / computed**2 if computed > _NO_PROMPT else 0.0

    @property
    def _cached_square(self) -> float:
        """Mean square of the cached share of a prompt, h^2 / q."""
        return self.cached_share**2 / self.hit_share if self.cached_share else 0.0

    @property
    def context_tokens(self) -> float:
        """Mean KV cache tokens of a running request at a random time.

        Long answers are running more often, so the mean age is E[O^2] / 2 E[O], not half the mean length.
        """
        return self.prompt_tokens * self.prompt_bias + self.age_tokens

    @property
    def prompt_cv2(self) -> float:
        """Squared coefficient of variation of the prompt length; 0 without prompts."""
        return self.prompt_var / self.prompt_tokens**2 if self.prompt_tokens > _NO_PROMPT else 0.0

    def cost_cv2(self, kv_share: float) -> float:
        """Return the squared coefficient of variation of the decode cost of one request.

        A share k (`kv_share`) of the cost is proportional to O (p + O / 2), the rest to O. First order in
        the relative deviations of O and p, whose covariance is `prompt_bias` - 1. Where long answers have
        short prompts, the product varies less than two moments imply: `cost_dispersion` corrects that share.
        """
        answer = self.output.var / self.output.mean**2
        prompt = kv_share * self.prompt_tokens * self.prompt_bias / self.context_tokens
        elastic = 1 + kv_share * self.age_tokens / self.context_tokens
        both = 2 * elastic * prompt * (self.prompt_bias - 1)
        cv2 = elastic**2 * answer + prompt**2 * self.prompt_cv2 * (1 + answer) + both
        return max(_CV2_SHARE_MIN * answer, cv2 * (1 + kv_share * (self.cost_dispersion - 1)))

    @property
    def age_tokens(self) -> float:
        """Mean age of a running request at a random time, output tokens: a = E[O^2] / 2 mu."""
        return (self.output.mean + self.output.var / self.output.mean) / 2

    @property
    def cube(self) -> float:
        """E[O^3], tokens cubed; (E[O^2] / mu)^3 for a log-normal length."""
        return (2 * self.age_tokens) ** 3 if self.output_cube is None else self.output_cube

    @property
    def age_transient_tokens(self) -> float:
        """Time constant of the age transient, output tokens: from a simultaneous start to stationary ages.

        A slot that starts empty is a renewal process without a past. Its mean age A(t) rises from 0 to
        a = E[O^2] / 2 mu (`age_tokens`). Up to time t the ages add up to E[sum of O_i^2] / 2, the last answer
        counted in full, less what that one has left. With E[N(t)] + 1 = t / mu + E[O^2] / 2 mu^2 answers
        begun and E[O^3] / 3 mu left,

            integral of (a - A(t)) dt = E[O^3] / 3 mu - a^2.

        The exponential A(t) = a (1 - exp(-t / tau)) with the same integral has tau = that integral over a.
        By Cauchy and Schwarz, tau is at least a / 3.
        """
        mean, age = self.output.mean, self.age_tokens
        return max(age / 3, self.cube / (3 * mean * age) - age)

    @property
    def excess_tokens(self) -> float:
        """Mean residual length of an answer at a random time less mu, a - mu, tokens; at least 0."""
        return max(0.0, self.age_tokens - self.output.mean)

    @property
    def residual_transient_tokens(self) -> float:
        """Time constant of the residual transient, output tokens: until long answers have accumulated.

        In slots that start empty, short answers end first and long ones accumulate. The mean residual length
        R(t) = mu (E[N(t)] + 1) - t rises from mu to a = E[O^2] / 2 mu (`age_tokens`). By the expansion of the
        renewal function,

            integral of (a - R(t)) dt = (E[O^3] / 3 mu - 2 a^2) / 2.

        An exponential with the same integral has the time constant integral / (a - mu). R rises by at most
        one token per token of time, so the time constant is at least a - mu.
        """
        excess, age = self.excess_tokens, self.age_tokens
        if not excess:
            return 0.0
        return max(excess, age * (self.age_transient_tokens - age) / (2 * excess))


def class_workload(
    lengths: LengthPredictive,
    prompt_tokens: float,
    max_tokens: float,
    *,
    prompt_var: float = 0.0,
    max_var: float = 0.0,
    cached_share: float = 0.0,
    hit_share: float = 1.0,
) -> Workload:
    """Build the workload of a class.

    Args:
        lengths: Posterior of its output lengths.
        prompt_tokens: Mean prompt.
        max_tokens: Mean output limit.
        prompt_var: Variance of the prompts, tokens squared.
        max_var: Variance of the limits, tokens squared. It adds to the variance of answers that reach them.
        cached_share: Share of the prompt tokens that the prefix cache holds.
        hit_share: Share of the prompts of which it holds something.
    """
    output = lengths.length(max_tokens)
    # Law of total variance: the mean of min(O, cap) changes with the cap by P(O > cap).
    reaches = float(np.interp(max_tokens, EDGES, lengths.survival))
    return Workload(
        prompt_tokens=prompt_tokens,
        output=Normal(max(1.0, output.mean), output.var + reaches**2 * max_var),
        mean_var=lengths.mean_var(max_tokens),
        prompt_var=prompt_var,
        output_cube=_cube(lengths, max_tokens),
        cached_share=cached_share,
        hit_share=hit_share,
    )


def _cube(lengths: LengthPredictive, max_tokens: float) -> float:
    """Return E[min(O, cap)^3], at least 1; answers of a bin count with their mean length."""
    ends = lengths.survival[:-1] - lengths.survival[1:]
    cubes = np.minimum(lengths.bin_tokens, max_tokens) ** 3
    longest = min(max_tokens, TOKENS_MAX) ** 3
    return max(1.0, float(ends @ cubes + lengths.survival[-1] * longest))


def mixture(workloads: Sequence[tuple[float, Workload]]) -> Workload:
    """Return the mixture of workloads that share a batch, each weighted by its share of the requests.

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
    cached = sum(share * w.prompt_tokens * w.cached_share for share, w in parts)
    cached_share = min(1.0, cached / prompt) if prompt > _NO_PROMPT else 0.0
    biased = sum(share * w.prompt_tokens * w.prompt_bias * w.output.mean for share, w in parts)
    return Workload(
        prompt_tokens=prompt,
        output=Normal(max(1.0, mean), max(0.0, square - mean**2)),
        mean_var=sum(share**2 * w.mean_var for share, w in parts),
        prompt_var=max(0.0, prompt_square - prompt**2),
        prompt_bias=biased / (prompt * mean) if prompt > _NO_PROMPT else 1.0,
        output_cube=sum(share * w.cube for share, w in parts),
        cost_dispersion=sum(share * w.cost_dispersion for share, w in parts),
        cached_share=cached_share,
        # Shares that add up to 1 may do so with an error of rounding.
        hit_share=min(1.0, max(cached_share, sum(share * w.hit_share for share, w in parts))),
    )
