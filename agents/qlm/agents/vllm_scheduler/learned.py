"""What one engine teaches as it runs: lengths of prompts and answers, lives, and the pace of iterations."""

from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.agents.batching.view import Pace
from qlm.agents.vllm_scheduler.iteration import LearnedIteration
from qlm.rct_estimator.length_predictive import LengthPredictive
from qlm.rct_estimator.output_length import OutputLengths, observe_all, typical_prior
from qlm.rct_estimator.profiles.iteration import IterationTime

ANSWERS_MAX: Final = 1000.0
"""Weight of all answers seen, in answers: older ones fade."""

STEP_WEIGHT: Final = 0.1
"""Weight of the latest iteration in the smoothed one."""

MEAN_OF: Final = 200
"""Requests over which means are taken, about."""


class Learned:
    """Statistics of one engine; the same calls give the same values.

    Args:
        iteration: Duration of an iteration by a profile; None to learn it.
    """

    def __init__(self, iteration: IterationTime | None = None) -> None:
        self._given = iteration
        self._iteration = LearnedIteration()
        self._lengths: OutputLengths = typical_prior()
        self._predictive: LengthPredictive | None = None
        self._new: list[tuple[int, bool]] = []
        self._step_s = 0.0
        self._prompts = _Mean()
        self._lives = _Mean()
        self.preemptions = 0

    @property
    def iteration(self) -> IterationTime:
        """Duration of an iteration: given, or learned so far."""
        return self._given or self._iteration.iteration

    @property
    def pace(self) -> Pace:
        """All that a policy gets to know of it."""
        answer = self._answers().length()
        return Pace(
            step_s=self._step_s,
            prompt_mean=self._prompts.mean,
            answer_mean=answer.mean,
            answer_square_mean=answer.mean**2 + answer.var,
            life_s=self._lives.mean,
            preemptions=self.preemptions,
            requests=self._prompts.count,
        )

    def arrived(self, prompt_tokens: int) -> None:
        """Count a request."""
        self._prompts.add(prompt_tokens)

    def ended(self, answer_tokens: int, life_s: float, *, cut_off: bool) -> None:
        """Count an answer; one cut off by a limit or an abort would have been longer."""
        if answer_tokens > 0:
            self._new.append((answer_tokens, cut_off))
            self._lives.add(life_s)

    def iterated(self, tokens: int, cached_tokens: int, duration_s: float) -> None:
        """Count an iteration: the tokens that it computed, and those in the KV cache."""
        if duration_s <= 0:
            return
        weight = STEP_WEIGHT if self._step_s else 1.0
        self._step_s += weight * (duration_s - self._step_s)
        if self._given is None:
            self._iteration.observe(tokens, cached_tokens, duration_s)

    def left(
        self, generated: npt.ArrayLike, limit: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return mean and standard deviation of the tokens to come, given those so far and the limit."""
        mean, variance = self._answers().remaining(generated, limit)
        return mean, np.sqrt(variance)

    def _answers(self) -> LengthPredictive:
        if self._new:
            tokens, cut_off = zip(*self._new, strict=True)
            self._lengths = _faded(observe_all(self._lengths, tokens, cut_off))
            self._new, self._predictive = [], None
        if self._predictive is None:
            self._predictive = self._lengths.predictive()
        return self._predictive


class _Mean:
    """Mean of the latest values."""

    __slots__ = ("count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0

    def add(self, value: float) -> None:
        """Take a value."""
        self.count += 1
        self.mean += (value - self.mean) / min(self.count, MEAN_OF)


def _faded(lengths: OutputLengths) -> OutputLengths:
    """Return the posterior with at most the weight that its answers may have."""
    factor = ANSWERS_MAX / max(ANSWERS_MAX, lengths.seen.answers)
    return OutputLengths(lengths.prior, lengths.seen.scaled(factor))
