"""What the requests of a class, or of a mixture of classes, ask of an engine: means and variances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.length_predictive import EDGES, TOKENS_MAX, LengthPredictive
from qlm.rct_estimator.normal import Normal

_CV2_SHARE_MIN: Final = 0.25
"""Share of the answers' own variation that is left at least where long answers have short prompts."""

_NO_PROMPT: Final = 1e-6
"""A mean prompt below this is none, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the requests of a class ask of an engine.

    Attributes:
        prompt_tokens: Mean prompt length to be computed (cached prefixes left out); 0 or more.
        output: Length of one answer, tokens; mean 1 or more.
        mean_doubt: Variance of the class's true mean length around `output.mean`, tokens squared.
        prompt_var: Variance of the prompt lengths, tokens squared.
        held_ratio: E[p O] / (E[p] E[O]) of prompts p and outputs O: how much longer the prompts are of
            requests that are met in the batch, where those with long answers are met more often.
        output_cube: E[O^3] of one answer, tokens cubed; None takes answers as log-normal.
        scatter: Variance of O (p + O / 2) over what `cost_cv2` makes of the moments above.
    """

    prompt_tokens: float
    output: Normal
    mean_doubt: float = 0.0
    prompt_var: float = 0.0
    held_ratio: float = 1.0
    output_cube: float | None = None
    scatter: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prompt_tokens) and self.prompt_tokens >= 0):
            raise InvalidValueError("prompt_tokens", self.prompt_tokens, "a number, 0 or more")
        if self.output.mean < 1:
            raise InvalidValueError("output.mean", self.output.mean, "at least 1")
        for name in ("mean_doubt", "prompt_var", "held_ratio", "scatter"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InvalidValueError(name, getattr(self, name), "a number, 0 or more")
        if self.output_cube is not None and not (math.isfinite(self.output_cube) and self.output_cube > 0):
            raise InvalidValueError("output_cube", self.output_cube, "a positive number, or none")

    @property
    def context_tokens(self) -> float:
        """Tokens in the KV cache of a request met at a random moment of its run.

        Long answers are met more often, so the mean age is E[O^2] / 2 E[O], not half the mean length.
        """
        return self.prompt_tokens * self.held_ratio + self.age_tokens

    @property
    def prompt_cv2(self) -> float:
        """Squared coefficient of variation of the prompts, 0 where there are none."""
        return self.prompt_var / self.prompt_tokens**2 if self.prompt_tokens > _NO_PROMPT else 0.0

    def cost_cv2(self, kv_share: float) -> float:
        """Squared coefficient of variation of what the decodes of one request cost.

        A share k (`kv_share`) of the cost goes with O (p + O / 2), the rest with O; to first order in the
        relative deviations of O and of p, which have the covariance `held_ratio` - 1. Where long answers
        have short prompts the product varies less than two moments can say: `scatter`, for that share.
        """
        answer = self.output.var / self.output.mean**2
        prompt = kv_share * self.prompt_tokens * self.held_ratio / self.context_tokens
        elastic = 1 + kv_share * self.age_tokens / self.context_tokens
        both = 2 * elastic * prompt * (self.held_ratio - 1)
        cv2 = elastic**2 * answer + prompt**2 * self.prompt_cv2 * (1 + answer) + both
        return max(_CV2_SHARE_MIN * answer, cv2 * (1 + kv_share * (self.scatter - 1)))

    @property
    def age_tokens(self) -> float:
        """Output tokens so far of a request met at a random moment of its run."""
        return (self.output.mean + self.output.var / self.output.mean) / 2

    @property
    def cube(self) -> float:
        """E[O^3], tokens cubed; of a log-normal length that is (E[O^2] / mu)^3."""
        return (2 * self.age_tokens) ** 3 if self.output_cube is None else self.output_cube

    @property
    def settling_tokens(self) -> float:
        """Output tokens after which requests that begin together are met at all ages.

        A place that starts empty is a renewal process without a past. Until time t its ages add up to
        E[sum of O_i^2] / 2, the last answer in full, less what that one still has to come: with
        E[N(t)] + 1 = t / mu + E[O^2] / 2 mu^2 answers begun, and E[O^3] / 3 mu to come,

            integral of (a - A(t)) dt = E[O^3] / 3 mu - a^2,      a = E[O^2] / 2 mu (`age_tokens`).

        An exponential A(t) = a (1 - exp(-t / tau)) from A(0) = 0 with the same integral has this over a as
        its time constant; by Cauchy and Schwarz it is a / 3 at least.
        """
        mean, age = self.output.mean, self.age_tokens
        return max(age / 3, self.cube / (3 * mean * age) - age)

    @property
    def excess_tokens(self) -> float:
        """How much more is left of an answer met at a random moment than of a new one, tokens; at least 0."""
        return max(0.0, self.age_tokens - self.output.mean)

    @property
    def piling_tokens(self) -> float:
        """Output tokens after which that much more is left, in places that begin empty.

        Short answers end first and long ones pile up. What is left, R(t) = mu (E[N(t)] + 1) - t, begins at mu
        and comes to a = E[O^2] / 2 mu (`age_tokens`); from the renewal function's expansion,

            integral of (a - R(t)) dt = (E[O^3] / 3 mu - 2 a^2) / 2,

        which an exponential course makes up with this over a - mu as its time constant. R cannot rise faster
        than by a token per token of time, so that it is a - mu at least.
        """
        excess, age = self.excess_tokens, self.age_tokens
        if not excess:
            return 0.0
        return max(excess, age * (self.settling_tokens - age) / (2 * excess))


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
        output_cube=_cube(lengths, max_tokens),
    )


def _cube(lengths: LengthPredictive, max_tokens: float) -> float:
    """E[min(O, cap)^3], each bin's answers as long as they are in the mean, at least 1."""
    ends = lengths.survival[:-1] - lengths.survival[1:]
    cubes = np.minimum(lengths.bin_tokens, max_tokens) ** 3
    longest = min(max_tokens, TOKENS_MAX) ** 3
    return max(1.0, float(ends @ cubes + lengths.survival[-1] * longest))


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
    held = sum(share * w.prompt_tokens * w.held_ratio * w.output.mean for share, w in parts)
    return Workload(
        prompt_tokens=prompt,
        output=Normal(max(1.0, mean), max(0.0, square - mean**2)),
        mean_doubt=sum(share**2 * w.mean_doubt for share, w in parts),
        prompt_var=max(0.0, prompt_square - prompt**2),
        held_ratio=held / (prompt * mean) if prompt > _NO_PROMPT else 1.0,
        output_cube=sum(share * w.cube for share, w in parts),
        scatter=sum(share * w.scatter for share, w in parts),
    )
