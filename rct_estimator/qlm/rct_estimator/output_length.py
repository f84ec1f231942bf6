"""How long the answers of a class are: a posterior over output lengths, learned as answers end (equation 3).

A length is a walk through bins: in each the answer ends with an unknown probability, its hazard, and the
hazards have independent beta distributions. This is the beta-Stacy process (Walker and Muliere 1997), the
conjugate prior of a distribution of any shape under censoring: an answer that was cut off at `max_tokens`
counts as having outlived the bins before, and says nothing about those after.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.domain.length_histogram import LengthHistogram
from qlm.rct_estimator.length_predictive import BINS, EDGES, FloatArray, LengthPredictive

TYPICAL_TOKENS: Final = 200.0
"""Median answer before anything is known, in tokens: between the means of public chat traces' first turns."""

PRIOR_LOG_SD: Final = 1.0
"""Spread of the prior: two thirds of the answers within a factor e of the median."""

PRIOR_STRENGTH: Final = 4.0
"""Answers that the prior is worth."""

_UNLIKELY: Final = 1e-6
"""Share of the prior on a length of any order of magnitude: no length is impossible."""

_MIDDLES: Final[FloatArray] = (EDGES[:-1] + 1 + EDGES[1:]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class LengthCounts:
    """What is known of each bin; arrays of shape (BINS,), float64.

    Attributes:
        ended: Answers that ended in the bin; may be fractions.
        outlived: Answers that went on after it.
        tokens: Total length of those that ended in it.
    """

    ended: FloatArray
    outlived: FloatArray
    tokens: FloatArray

    def __post_init__(self) -> None:
        for name in ("ended", "outlived", "tokens"):
            values = getattr(self, name)
            if values.shape != (BINS,) or not 0 <= values.min() <= values.max() < math.inf:
                raise InvalidValueError(name, values.tolist(), f"{BINS} finite numbers, 0 or more")

    def combined(self, other: "LengthCounts", weight: float = 1.0) -> "LengthCounts":
        """Add `other` to `weight` times these counts."""
        return LengthCounts(
            weight * self.ended + other.ended,
            weight * self.outlived + other.outlived,
            weight * self.tokens + other.tokens,
        )


@dataclass(frozen=True, slots=True, eq=False)
class OutputLengths:
    """The posterior of one class: what was assumed, and what was seen since (less what was forgotten)."""

    prior: LengthCounts
    seen: LengthCounts

    @property
    def observations(self) -> float:
        """Ended answers it rests on, the prior not counted."""
        return float(self.seen.ended.sum())

    def predictive(self) -> LengthPredictive:
        """Distribution of the next answer's length, the doubt about the hazards included."""
        known = self.prior.combined(self.seen)
        ended, total = known.ended, known.ended + known.outlived
        hazard = np.divide(ended, total, out=np.ones(BINS), where=total > 0)
        hazard[-1] = 1.0
        lengths = np.divide(known.tokens, ended, out=_MIDDLES.copy(), where=ended > 1e-9)
        doubt = hazard * (1 - hazard) / (total + 1)
        return LengthPredictive.of(hazard, np.clip(lengths, EDGES[:-1], EDGES[1:]), doubt)


def typical_prior(max_tokens: float | None = None, *, strength: float = PRIOR_STRENGTH) -> OutputLengths:
    """Assume log-normal lengths before the first answer.

    The median is `TYPICAL_TOKENS`, drawn half-way (in logarithms) towards half of `max_tokens`, which
    clients often set generously, and never beyond that half.

    Args:
        max_tokens: Mean output limit of the class, if known; positive.
        strength: Answers that the assumption is worth; positive.

    Raises:
        InvalidValueError: An argument is not positive and finite.
    """
    _positive("strength", strength)
    median = TYPICAL_TOKENS
    if max_tokens is not None:
        _positive("max_tokens", max_tokens)
        median = max(1.0, min(max_tokens / 2, math.sqrt(TYPICAL_TOKENS * max_tokens / 2)))
    z = np.log(EDGES[1:-1] / median) / PRIOR_LOG_SD
    below = np.array([0.0, *(0.5 * math.erfc(v) for v in (-z / math.sqrt(2)).tolist()), 1.0])
    share = (np.diff(below) + _UNLIKELY) / (1 + BINS * _UNLIKELY)
    return OutputLengths(_weighted(share, _MIDDLES, strength), _nothing())


def pooled_prior(other: OutputLengths, *, strength: float = PRIOR_STRENGTH) -> OutputLengths:
    """Assume that a new class is like what is known already, all classes together for instance.

    Args:
        other: The posterior to start from.
        strength: Answers that it is worth here; positive.

    Raises:
        InvalidValueError: `strength` is not positive and finite.
    """
    _positive("strength", strength)
    predictive = other.predictive()
    return OutputLengths(
        _weighted(-np.diff(predictive.survival), predictive.bin_tokens, strength), _nothing()
    )


def observe(
    lengths: OutputLengths, tokens: float, *, cut_off: bool = False, keep: float = 1.0
) -> OutputLengths:
    """Learn from one answer, in constant time; see `observe_all`."""
    return observe_all(lengths, np.array([tokens]), np.array([cut_off]), keep=keep)


def observe_all(
    lengths: OutputLengths, tokens: npt.ArrayLike, cut_off: npt.ArrayLike, *, keep: float = 1.0
) -> OutputLengths:
    """Learn from answers.

    Args:
        lengths: The posterior so far.
        tokens: Shape (n,), output tokens of each; positive.
        cut_off: Shape (n,), true if it had not come to its end: finished by `length`, or aborted.
        keep: What each answer leaves of those before, in (0, 1]; 0.995 looks back about 200 answers.
            The order within one call is not regarded. The prior is never forgotten.

    Raises:
        InvalidValueError: A length is not positive, or `keep` is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise InvalidValueError("keep", keep, "a number above 0, up to 1")
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
    return OutputLengths(lengths.prior, lengths.seen.combined(new, float(keep) ** len(produced)))


def posterior(seen: LengthHistogram, prior: OutputLengths) -> OutputLengths:
    """Learn from counted answers: what `observe_all` would have made of them one by one.

    Args:
        seen: The class's latest answers.
        prior: What to assume before them; what that has seen itself is kept.
    """
    return OutputLengths(prior.prior, prior.seen.combined(_counts(seen)))


def _counts(seen: LengthHistogram) -> LengthCounts:
    ended, ended_tokens = _floats(seen.ended), _floats(seen.ended_tokens)
    cut, cut_tokens = _floats(seen.cut_off), _floats(seen.cut_off_tokens)
    reached = ended + cut
    outlived = np.append(np.cumsum(reached[::-1])[::-1][1:], 0.0)
    # Within its last bin an answer that was cut off has outlived as much as it got through.
    low, high = EDGES[:-1], EDGES[1:]
    passed = np.clip((cut_tokens - cut * low) / (high - low), 0.0, cut)
    return LengthCounts(ended, outlived + passed, np.minimum(ended_tokens, ended * high))


def _floats(counts: tuple[int, ...]) -> FloatArray:
    return np.array(counts, dtype=np.float64)


def lengths_to_plain(lengths: OutputLengths) -> dict[str, Any]:
    """Write a posterior as plain data, for storage."""
    return {"prior": _counts_to_plain(lengths.prior), "seen": _counts_to_plain(lengths.seen)}


def lengths_from_plain(plain: object) -> OutputLengths:
    """Read what `lengths_to_plain` wrote.

    Raises:
        InvalidValueError: It is something else; names the key.
    """
    if not isinstance(plain, Mapping) or set(plain) != {"prior", "seen"}:
        raise InvalidValueError("output_lengths", plain, "a mapping with the keys prior, seen")
    return OutputLengths(*(_counts_from_plain(name, plain[name]) for name in ("prior", "seen")))


def _weighted(share: FloatArray, tokens: FloatArray, strength: float) -> LengthCounts:
    after = np.append(np.cumsum(share[::-1])[::-1][1:], 0.0)
    return LengthCounts(strength * share, strength * after, strength * share * tokens)


def _nothing() -> LengthCounts:
    return LengthCounts(np.zeros(BINS), np.zeros(BINS), np.zeros(BINS))


def _counts_to_plain(counts: LengthCounts) -> dict[str, list[float]]:
    """Keep the bins up to the last one that says something."""
    used = np.flatnonzero(counts.ended + counts.outlived)
    size = int(used[-1]) + 1 if used.size else 0
    return {name: getattr(counts, name)[:size].tolist() for name in ("ended", "outlived", "tokens")}


def _counts_from_plain(where: str, plain: object) -> LengthCounts:
    if not isinstance(plain, Mapping) or set(plain) != {"ended", "outlived", "tokens"}:
        raise InvalidValueError(where, plain, "a mapping with the keys ended, outlived, tokens")
    arrays = []
    for name in ("ended", "outlived", "tokens"):
        values = plain[name]
        numbers = isinstance(values, list) and all(type(v) in (int, float) for v in values)
        if not numbers or len(values) > BINS:
            raise InvalidValueError(f"{where}.{name}", values, f"at most {BINS} numbers")
        arrays.append(np.array([*values, *[0.0] * (BINS - len(values))]))
    return LengthCounts(*arrays)


def _positive(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InvalidValueError(field, value, "a positive number")
