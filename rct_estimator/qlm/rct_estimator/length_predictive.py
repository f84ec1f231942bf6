"""Predictive distribution of an output length, and of the rest of a running answer.

All results follow from the survival function S and two integrals of it:
E[min(O, cap)] = integral of S up to cap, and E[min(O, cap)^2] = integral of 2 x S(x).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES
from qlm.rct_estimator.normal import Normal

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


EDGES: Final[FloatArray] = np.array(LENGTH_EDGES, dtype=np.float64)
"""Bounds of the length bins, tokens: bin j is (EDGES[j], EDGES[j + 1]], a quarter octave from 8 on."""

BINS: Final = LENGTH_BINS
"""Number of bins."""

TOKENS_MAX: Final = float(EDGES[-1])
"""Upper bound of the last bin, tokens: longer answers count as this long."""

_WIDTHS: Final[FloatArray] = np.diff(EDGES)

_FINER: Final = 16
"""Quantiles per stratum."""

_EMPTY: Final = 1e-300
"""Avoids division by zero survival."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthPredictive:
    """Posterior predictive distribution of an output length O.

    Attributes:
        survival: P(O > edge), shape (BINS + 1,).
        area: Integral of the survival from 0 to the edge, tokens, shape (BINS + 1,).
        square_area: Integral of 2 x S(x) from 0 to the edge, tokens squared, shape (BINS + 1,).
        bin_tokens: Mean length of answers that end in the bin, shape (BINS,).
        hazard_var: Posterior variance of each bin's hazard, shape (BINS,).
    """

    survival: FloatArray
    area: FloatArray
    square_area: FloatArray
    bin_tokens: FloatArray
    hazard_var: FloatArray

    @classmethod
    def of(cls, hazard: FloatArray, bin_tokens: FloatArray, hazard_var: FloatArray) -> "LengthPredictive":
        """Build the distribution from P(ends in bin | reaches bin); all arguments have the shape (BINS,)."""
        survival = np.concatenate([[1.0], np.cumprod(1 - hazard)])
        ends, after = survival[:-1] * hazard, survival[1:]
        low, high = EDGES[:-1], EDGES[1:]
        area = after * (high - low) + ends * (bin_tokens - low)
        square_area = after * (high**2 - low**2) + ends * (bin_tokens**2 - low**2)
        zero = np.zeros(1)
        return cls(
            survival,
            np.concatenate([zero, np.cumsum(area)]),
            np.concatenate([zero, np.cumsum(square_area)]),
            bin_tokens,
            hazard_var,
        )

    def length(self, cap: float = TOKENS_MAX) -> Normal:
        """Return mean and variance of min(O, cap) of one answer, tokens, hazard uncertainty included."""
        mean, var = self.remaining(np.zeros(1), np.full(1, cap))
        return Normal(float(mean[0]), float(var[0]))

    def mean_var(self, cap: float = TOKENS_MAX) -> float:
        """Return the variance of the true mean of min(O, cap) around the estimate, tokens squared.

        It is common to all answers of the class, so it does not average out over many answers. First order
        in the hazards, which are independent.
        """
        low, high = EDGES[:-1], np.minimum(EDGES[1:], cap)
        rest = np.divide(
            self._until(np.full(1, cap))[0] - self._until(high)[0],
            self.survival[1:],
            out=np.zeros(BINS),
            where=self.survival[1:] > _EMPTY,
        )
        gain = self.survival[:-1] * (high - np.minimum(self.bin_tokens, high) + rest)
        return float(np.sum(np.where(low < cap, gain**2 * self.hazard_var, 0.0)))

    def remaining(self, produced: npt.ArrayLike, cap: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the tokens left of answers that still run after `produced` tokens and end by `cap`.

        Args:
            produced: Tokens so far, shape (n,); 0 or more.
            cap: Output limits, shape (n,) or a scalar.

        Returns:
            Mean and variance, each of shape (n,); 0 where `produced` has reached `cap`.
        """
        start = np.asarray(produced, dtype=np.float64)
        limit = np.maximum(np.asarray(cap, dtype=np.float64), start)
        survive = np.maximum(np.interp(start, EDGES, self.survival), _EMPTY)
        (area_before, square_before), (area, square_area) = self._until(start), self._until(limit)
        mean, square = (area - area_before) / survive, (square_area - square_before) / survive
        mean = np.minimum(np.maximum(mean, 0.0), limit - start)
        # E[(O - k)^2] = E[O^2] - k^2 - 2 k E[O - k], and `square` is E[O^2] - k^2.
        return mean, np.maximum(square - 2 * start * mean - mean**2, 0.0)

    def outlives(self, tokens: npt.ArrayLike, cap: float = TOKENS_MAX) -> FloatArray:
        """Return P(min(O, cap) > tokens), elementwise."""
        at = np.asarray(tokens, dtype=np.float64)
        return np.where(at < cap, np.interp(at, EDGES, self.survival), 0.0)

    def quantile(self, share: npt.ArrayLike, cap: float = TOKENS_MAX) -> FloatArray:
        """Return quantiles of min(O, cap), tokens, elementwise.

        Args:
            share: Probabilities, in [0, 1].
            cap: Output limit.

        Raises:
            InvalidValueError: A share is not in [0, 1].
        """
        shares = np.asarray(share, dtype=np.float64)
        if not np.all((shares >= 0) & (shares <= 1)):
            raise InvalidValueError("share", shares.tolist(), "numbers from 0 to 1")
        # Reversed, since np.interp needs ascending abscissae and the survival descends.
        at = np.interp(1 - shares, self.survival[::-1], EDGES[::-1])
        return np.minimum(at, cap)

    def strata(self, points: int, cap: float = TOKENS_MAX) -> FloatArray:
        """Return equally likely values of min(O, cap), shape (points,), tokens; read-only.

        Their mean is exact, their variance nearly so.
        """
        return _strata(self, points, cap)

    def age_area(self, tokens: npt.ArrayLike, cap: float = TOKENS_MAX) -> FloatArray:
        """Return P(rest of an answer that runs at a random time <= `tokens`).

        The stationary excess of renewal theory: integral of S up to `tokens`, over the mean.
        """
        at = np.minimum(np.asarray(tokens, dtype=np.float64), cap)
        whole = float(self._until(np.full(1, cap))[0][0])
        return np.asarray(self._until(at)[0] / max(whole, _EMPTY), dtype=np.float64)

    def _until(self, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the integrals of S(x) and 2 x S(x) from 0 to each of `tokens`.

        Within a bin, S is linear and scaled to match the integral of the bin.
        """
        # Not np.clip: on a few numbers it takes three times as long.
        bins = np.minimum(np.maximum(np.searchsorted(EDGES, tokens, side="left") - 1, 0), BINS - 1)
        low, width = EDGES[bins], _WIDTHS[bins]
        part = np.minimum(np.maximum((tokens - low) / width, 0.0), 1.0)
        high_s, low_s = self.survival[bins], self.survival[bins + 1]
        in_area, in_square = _shares(low, width, high_s, high_s - low_s, part)
        area, square_area = self.area[bins], self.square_area[bins]
        return (
            area + (self.area[bins + 1] - area) * in_area,
            square_area + (self.square_area[bins + 1] - square_area) * in_square,
        )


@lru_cache(maxsize=1024)
def _strata(lengths: LengthPredictive, points: int, cap: float) -> FloatArray:
    # Every kind of accelerator and every size of its batch asks for those of a class.
    fine = lengths.quantile(_midpoints(points * _FINER), cap)
    means = fine.reshape(points, _FINER).mean(axis=1)
    values = np.asarray(means * (lengths.length(cap).mean / means.mean()), dtype=np.float64)
    values.flags.writeable = False
    return values


@lru_cache(maxsize=16)
def _midpoints(parts: int) -> FloatArray:
    """Return the middles of equal parts of [0, 1]; read-only."""
    shares = (np.arange(parts) + 0.5) / parts
    shares.flags.writeable = False
    return shares


def _shares(
    low: FloatArray, width: FloatArray, high_s: FloatArray, fall: FloatArray, part: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the shares of a bin's two integrals that lie in the first `part` of the bin.

    The bin begins at `low`, where the survival is `high_s`; over its `width` the survival drops by `fall`.
    """
    area, whole_area = high_s * part - fall * part**2 / 2, high_s - fall / 2
    square_area = low * area + width * (high_s * part**2 / 2 - fall * part**3 / 3)
    whole_square = low * whole_area + width * (high_s / 2 - fall / 3)
    return (
        np.divide(area, whole_area, out=part.copy(), where=whole_area > _EMPTY),
        np.divide(square_area, whole_square, out=part.copy(), where=whole_square > _EMPTY),
    )
