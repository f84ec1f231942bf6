"""What a host of a batch policy learns of its instance: its pace, and the lengths of its answers."""

from typing import Final

import numpy as np

from qlm.agents.batching.clipping import clipped
from qlm.agents.batching.view import Floats, Ints, Pace

STEP_WEIGHT: Final = 0.05
"""Weight of the last iteration in the smoothed duration: about twenty iterations count."""

PRIOR_TOKENS: Final = 200.0
"""Mean answer before any was seen, near ShareGPT's. Its standard deviation is as large (exponential)."""

PRIOR_ANSWERS: Final = 8
"""Answers that the prior counts for."""

LEAST_LEFT: Final = 0.5
"""Least expected tokens to come, in mean answers. An answer beyond the mean is from a long tail: that it has
more tokens does not mean that fewer are left."""


class PaceMeter:
    """Sums over the requests of one engine."""

    def __init__(self) -> None:
        self._step_s = 0.0
        self._requests = 0
        self._prompt_tokens = 0
        self._ended = 0
        self._answer_tokens = 0
        self._answer_squares = 0
        self._lives_s = 0.0
        self._preemptions = 0

    def arrived(self, prompt_tokens: int) -> None:
        """Count a request."""
        self._requests += 1
        self._prompt_tokens += prompt_tokens

    def iterated(self, iterations: int, lasted_s: float) -> None:
        """Take the time of some iterations."""
        mean_s = lasted_s / iterations
        weight = 1 - (1 - STEP_WEIGHT) ** iterations if self._step_s else 1.0
        self._step_s += weight * (mean_s - self._step_s)

    def preempted(self) -> None:
        """Count a preemption by the policy."""
        self._preemptions += 1

    def ended(self, answer_tokens: int, life_s: float) -> None:
        """Count a request that has ended by itself, `life_s` after its arrival."""
        self._ended += 1
        self._answer_tokens += answer_tokens
        self._answer_squares += answer_tokens * answer_tokens
        self._lives_s += life_s

    def pace(self) -> Pace:
        """Return what was learned; answers are shrunk to the prior while few were seen."""
        answers = self._ended + PRIOR_ANSWERS
        return Pace(
            step_s=self._step_s,
            prompt_mean=self._prompt_tokens / max(1, self._requests),
            answer_mean=(self._answer_tokens + PRIOR_ANSWERS * PRIOR_TOKENS) / answers,
            answer_square_mean=(self._answer_squares + PRIOR_ANSWERS * 2 * PRIOR_TOKENS**2) / answers,
            life_s=self._lives_s / max(1, self._ended),
            preemptions=self._preemptions,
            requests=self._requests,
        )


def tokens_at_most(generated: Ints, limit: Ints) -> Floats:
    """Return the most output tokens to come, 1 or more.

    Args:
        generated: Output tokens of each request.
        limit: Most output tokens of each request.
    """
    return np.asarray(np.maximum(1.0, limit - generated), np.float64)


def tokens_left(pace: Pace, generated: Ints, limit: Ints) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of the output tokens to come, each 1 or more.

    Args:
        pace: Lengths of answers.
        generated: Output tokens of each request.
        limit: Most output tokens of each request, more than it has.
    """
    most = tokens_at_most(generated, limit)
    mean = np.maximum(pace.answer_mean - generated, LEAST_LEFT * pace.answer_mean)
    deviation = max(0.0, pace.answer_square_mean - pace.answer_mean**2) ** 0.5
    return clipped(mean, 1.0, most), np.minimum(max(1.0, deviation), most)
