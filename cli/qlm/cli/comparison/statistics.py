"""Means over seeds, and intervals of paired differences."""

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev
from typing import Final

_T_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantile 0.975 of Student's t for 1 to 9 degrees of freedom."""


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean; None of no value."""
    return mean(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation between seeds; None of fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of paired differences by Student's t; None of fewer than two."""
    if len(differences) < 2:
        return None
    centre = mean(differences)
    half = _t_975(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return centre - half, centre + half


def _t_975(freedom: int) -> float:
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    # Two terms of the expansion of the quantile in 1 / freedom: exact to 0.002 from 10 degrees of freedom on.
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
