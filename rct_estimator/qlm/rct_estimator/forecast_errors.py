"""Errors of forecasts, learned from how earlier ones came out; they correct and widen later ones.

An error is the logarithm of (actual + `OFFSET_S`) over (forecast + `OFFSET_S`). Errors are counted in bins,
by turn and horizon, and older counts fade. The corrected mean is the median outcome, and the interval of 90 %
holds that share of the counted outcomes: a split conformal interval, which assumes no shape of the
distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.normal import Normal

Counts = npt.NDArray[np.float64]

OFFSET_S: Final = 2.0
"""Added to both times of a ratio: below it, errors count in seconds."""

HORIZONS_S: Final = (3.0, 10.0, 30.0, 100.0)
"""Bounds of the forecasts that are counted together."""

BINS: Final = 64
"""Number of bins of an error."""

ERROR_MAX: Final = 4.0
"""Largest error that has a bin of its own; larger ones are in the last."""

MEMORY: Final = 100.0
"""Outcomes of one turn and horizon after which a count weighs 1 / e."""

PRIOR_WEIGHT: Final = 15.0
"""Weight of what is assumed at first, in outcomes; half of it is left after as many, and so on."""

ALONE_MIN: Final = 5.0
"""Outcomes from which forecasts of groups that wait for no other model are corrected."""

LEVEL: Final = 0.92
"""Share of the counted outcomes inside an interval of 90 %: slow outcomes are counted late."""

WIDTH_SD: Final = 1.645
"""Standard deviations from the mean to either end of an interval of 90 %."""

PRIOR_SHARES: Final = (0.02, 0.05, 0.25, 0.5, 0.75, 0.95, 0.98)
"""Shares whose quantiles describe what is assumed at first."""

Quantiles = Sequence[Sequence[Sequence[float]]]
"""Errors at `PRIOR_SHARES`, by turn and horizon."""


class Turn(IntEnum):
    """What a group waits for besides those before it.

    Attributes:
        ALONE: Nothing: no other model takes the instance from it.
        AWAKE: Its model is awake; the instance may leave it for another.
        SWAP: Another model is awake.
    """

    ALONE = 0
    AWAKE = 1
    SWAP = 2


SHAPE: Final = (len(Turn), len(HORIZONS_S) + 1, BINS)
"""Turn, horizon, error."""

_EDGES: Final = np.linspace(-ERROR_MAX, ERROR_MAX, BINS + 1)
_CENTERS: Final = (_EDGES[1:] + _EDGES[:-1]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class ForecastErrors:
    """Errors of forecasts of one event.

    Attributes:
        assumed: Counts assumed at first, by `SHAPE`.
        counts: Outcomes, fading.
    """

    assumed: Counts
    counts: Counts

    @classmethod
    def of(cls, prior: Quantiles) -> "ForecastErrors":
        """Return errors of which nothing is learned yet."""
        return cls(_prior_counts(prior), np.zeros(SHAPE))

    def with_counts(self, counts: Counts) -> "ForecastErrors":
        """Return the errors with these outcomes, of shape `SHAPE`."""
        return replace(self, counts=counts)

    def after(self, turn: Turn, forecast_s: float, actual_s: float) -> "ForecastErrors":
        """Count one outcome."""
        at, counts = (turn, _horizon(forecast_s)), self.counts.copy()
        counts[at] *= 1 - 1 / MEMORY
        counts[at][_bin(_error(forecast_s, actual_s))] += 1
        return replace(self, counts=counts)

    def faded(self, weight: float) -> "ForecastErrors":
        """Return the errors with less weight on what was learned."""
        return replace(self, counts=self.counts * weight)

    def corrected(self, turn: Turn, forecast: Normal) -> Normal:
        """Return the distribution of a time, given its forecast; no narrower than that.

        The mean is the median outcome; 90 % are within `WIDTH_SD` standard deviations. Groups that wait for
        no other model are forecast well: nothing is assumed of them.
        """
        at = turn, _horizon(forecast.mean)
        seen = float(self.counts[at].sum())
        if turn is Turn.ALONE and seen < ALONE_MIN:
            return forecast
        counts = self.assumed[at] / (1 + seen / PRIOR_WEIGHT) + self.counts[at]
        median = _quantile(counts, _EDGES, 0.5)
        # Errors as shares of the corrected time, on both sides alike.
        shares = np.abs(np.exp(_CENTERS - median) - 1)
        order = np.argsort(shares)
        half = _quantile(counts[order], np.concatenate(([0.0], shares[order])), LEVEL)
        base_s = (max(0.0, forecast.mean) + OFFSET_S) * math.exp(median)
        return Normal(max(0.0, base_s - OFFSET_S), max(forecast.var, (half * base_s / WIDTH_SD) ** 2))


def inside(time: Normal, actual_s: float) -> bool:
    """Return whether an outcome is in the 90 % interval of its forecast."""
    return abs(actual_s - time.mean) <= WIDTH_SD * math.sqrt(time.var)


def _horizon(forecast_s: float) -> int:
    return sum(forecast_s >= bound for bound in HORIZONS_S)


def _error(forecast_s: float, actual_s: float) -> float:
    return math.log((max(0.0, actual_s) + OFFSET_S) / (max(0.0, forecast_s) + OFFSET_S))


def _bin(error: float) -> int:
    return min(BINS - 1, max(0, int((error + ERROR_MAX) / (2 * ERROR_MAX) * BINS)))


def _quantile(counts: Counts, edges: Counts, share: float) -> float:
    summed = np.concatenate(([0.0], np.cumsum(counts)))
    return float(np.interp(share * summed[-1], summed, edges))


def _prior_counts(prior: Quantiles) -> Counts:
    """Return quantiles as counts, with a thousandth of their weight spread evenly."""
    found = np.full(SHAPE, 0.001 * PRIOR_WEIGHT / BINS)
    shares = (0.0, *PRIOR_SHARES, 1.0)
    for turn, rows in enumerate(prior):
        for horizon, row in enumerate(rows):
            below = np.interp(_EDGES, (row[0] - 0.5, *row, row[-1] + 0.5), shares)
            found[turn, horizon] += PRIOR_WEIGHT * np.diff(below)
    return found
