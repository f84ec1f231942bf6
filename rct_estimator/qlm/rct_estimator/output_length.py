"""Posterior of the output lengths of a class, learned as answers end (QLM, equation 3).

A length passes through bins. In each bin the answer ends with an unknown probability, the hazard of the bin.
The hazards have independent beta distributions. This is the beta-Stacy process (Walker and Muliere 1997), the
conjugate prior of a distribution of any shape under censoring. An answer cut off at `max_tokens` counts as
having outlived the bins before it, and carries no information about those after.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.domain.length_histogram import LengthHistogram
from qlm.rct_estimator.length_predictive import BINS, EDGES, FloatArray, LengthPredictive

TYPICAL_TOKENS: Final = 200.0
"""Prior median of output lengths, tokens: between the means of the first turns of public chat traces."""

PRIOR_LOG_SD: Final = 1.0
"""Log standard deviation of the prior: two thirds of the answers are within a factor e of the median."""

PRIOR_STRENGTH: Final = 4.0
"""Weight of the prior, in answers."""

_UNLIKELY: Final = 1e-6
"""Least prior probability of each bin: no length is impossible."""

_MIDDLES: Final[FloatArray] = (EDGES[:-1] + 1 + EDGES[1:]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class LengthCounts:
    """Counts per bin; arrays of shape (BINS,), float64.

    Attributes:
        ended: Answers that ended in the bin; may be fractional.
        outlived: Answers that continued after it.
        tokens: Total length of the answers that ended in it.
    """

    ended: FloatArray
    outlived: FloatArray
    tokens: FloatArray

    def __post_init__(self) -> None:
        for name in ("ended", "outlived", "tokens"):
            values = getattr(self, name)
            if values.shape != (BINS,) or not 0 <= values.min() <= values.max() < math.inf:
                raise InvalidValueError(name, values.tolist(), f"{BINS} finite numbers, 0 or more")

    def combined(self, other: "LengthCounts") -> "LengthCounts":
        """Return the sum of both counts."""
        return LengthCounts(
            self.ended + other.ended, self.outlived + other.outlived, self.tokens + other.tokens
        )

    def without(self, part: "LengthCounts") -> "LengthCounts":
        """Return the counts less those of a part."""
        return LengthCounts(
            np.maximum(0.0, self.ended - part.ended),
            np.maximum(0.0, self.outlived - part.outlived),
            np.maximum(0.0, self.tokens - part.tokens),
        )

    def scaled(self, factor: float) -> "LengthCounts":
        """Return the counts with another weight."""
        return LengthCounts(factor * self.ended, factor * self.outlived, factor * self.tokens)

    @property
    def answers(self) -> float:
        """Number of answers, cut-off ones included: each ended in the first bin or outlived it."""
        return float(self.ended[0] + self.outlived[0])

    @property
    def all_tokens(self) -> float:
        """Tokens of all answers."""
        inside = np.maximum(0.0, self.tokens - self.ended * EDGES[:-1])
        return float(self.outlived @ np.diff(EDGES) + inside.sum())


NO_COUNTS: Final = LengthCounts(np.zeros(BINS), np.zeros(BINS), np.zeros(BINS))
"""Counts of no answer."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputLengths:
    """The posterior of one class: prior counts and observed counts."""

    prior: LengthCounts
    seen: LengthCounts

    def predictive(self) -> LengthPredictive:
        """Return the distribution of the next answer's length, with the uncertainty of the hazards."""
        known = self.prior.combined(self.seen)
        ended, total = known.ended, known.ended + known.outlived
        hazard = np.divide(ended, total, out=np.ones(BINS), where=total > 0)
        hazard[-1] = 1.0
        lengths = np.divide(known.tokens, ended, out=_MIDDLES.copy(), where=ended > 1e-9)
        uncertainty = hazard * (1 - hazard) / (total + 1)
        return LengthPredictive.of(hazard, np.clip(lengths, EDGES[:-1], EDGES[1:]), uncertainty)


def typical_prior(max_tokens: float | None = None, mean_tokens: float | None = None) -> OutputLengths:
    """Return a log-normal prior for a class without answers.

    Without a mean, the median is the geometric mean of `TYPICAL_TOKENS` and half of `max_tokens`, since
    clients often set generous limits. It is never above that half.

    Args:
        max_tokens: Mean output limit of the class, if known.
        mean_tokens: Mean answer of similar classes, if known.

    Raises:
        InvalidValueError: The limit or the mean is not positive and finite.
    """
    for name, value in (("max_tokens", max_tokens), ("mean_tokens", mean_tokens)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidValueError(name, value, "a positive number")
    half = math.inf if max_tokens is None else max_tokens / 2
    if mean_tokens is not None:
        median = mean_tokens / math.exp(PRIOR_LOG_SD**2 / 2)
    else:
        median = TYPICAL_TOKENS if max_tokens is None else math.sqrt(TYPICAL_TOKENS * half)
    median = max(1.0, min(half, median))
    z = np.log(EDGES[1:-1] / median) / PRIOR_LOG_SD
    below = np.array([0.0, *(0.5 * math.erfc(v) for v in (-z / math.sqrt(2)).tolist()), 1.0])
    share = (np.diff(below) + _UNLIKELY) / (1 + BINS * _UNLIKELY)
    return OutputLengths(_weighted(share, _MIDDLES), NO_COUNTS)


def pooled_prior(other: OutputLengths) -> OutputLengths:
    """Return a prior with the distribution of another posterior, of all classes together for instance."""
    predictive = other.predictive()
    return OutputLengths(_weighted(-np.diff(predictive.survival), predictive.bin_tokens), NO_COUNTS)


def observe_all(lengths: OutputLengths, tokens: npt.ArrayLike, cut_off: npt.ArrayLike) -> OutputLengths:
    """Return the posterior after more answers.

    Args:
        lengths: The posterior so far.
        tokens: Output tokens of each, shape (n,); positive.
        cut_off: True for censored answers, shape (n,): outcome `length`, or aborted.

    Raises:
        InvalidValueError: A length is not positive.
    """
    produced = np.asarray(tokens, dtype=np.float64)
    cut = np.asarray(cut_off, dtype=np.bool_)
    if not np.all(np.isfinite(produced) & (produced > 0)):
        raise InvalidValueError("tokens", produced.tolist(), "positive numbers")
    produced = np.clip(produced, 1, EDGES[-1])
    last = np.searchsorted(EDGES, produced, side="left") - 1
    ended = np.bincount(last[~cut], minlength=BINS).astype(np.float64)
    totals = np.bincount(last[~cut], weights=produced[~cut], minlength=BINS).astype(np.float64)
    reached = np.bincount(last, minlength=BINS)
    outlived = np.append(np.cumsum(reached[::-1])[::-1][1:], 0).astype(np.float64)
    passed = (produced[cut] - EDGES[last[cut]]) / (EDGES[last[cut] + 1] - EDGES[last[cut]])
    outlived += np.bincount(last[cut], weights=passed, minlength=BINS)
    new = LengthCounts(ended, outlived, totals)
    return OutputLengths(lengths.prior, lengths.seen.combined(new))


def posterior(seen: LengthHistogram, prior: OutputLengths) -> OutputLengths:
    """Return the posterior after counted answers, as `observe_all` computes it from single ones.

    Args:
        seen: Counts of the class's latest answers.
        prior: The posterior before them, with its own observations.
    """
    return OutputLengths(prior.prior, prior.seen.combined(length_counts(seen)))


def length_counts(seen: LengthHistogram) -> LengthCounts:
    """Return the counts of a histogram."""
    ended, ended_tokens = _floats(seen.ended), _floats(seen.ended_tokens)
    cut, cut_tokens = _floats(seen.cut_off), _floats(seen.cut_off_tokens)
    reached = ended + cut
    outlived = np.append(np.cumsum(reached[::-1])[::-1][1:], 0.0)
    # A censored answer has outlived its last bin in part: the share of the bin that it passed.
    low, high = EDGES[:-1], EDGES[1:]
    passed = np.clip((cut_tokens - cut * low) / (high - low), 0.0, cut)
    return LengthCounts(ended, outlived + passed, np.minimum(ended_tokens, ended * high))


def _floats(counts: tuple[int, ...]) -> FloatArray:
    return np.array(counts, dtype=np.float64)


def _weighted(share: FloatArray, tokens: FloatArray) -> LengthCounts:
    after = np.append(np.cumsum(share[::-1])[::-1][1:], 0.0)
    return LengthCounts(PRIOR_STRENGTH * share, PRIOR_STRENGTH * after, PRIOR_STRENGTH * share * tokens)
