"""Search for the kinks of the linear term: where the time of one more token changes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.rct_estimator.profiles.columns import Columns, segments
from qlm.rct_estimator.profiles.iteration import FloatArray
from qlm.rct_estimator.profiles.least_error import least_absolute

_KINKS_MAX: Final = 4
_CANDIDATES: Final = 16
"""Positions tried for a new kink, at equal ratios over the tokens that occur."""
_REFINEMENTS: Final = 16
"""Steps of the search between two positions; each leaves 62 % of the interval."""
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
_ERROR_MIN: Final = 1e-5
"""Mean relative error below which no kink is missing."""
_PREFERENCE: Final = 1e-3
"""Weight of the usual value of a coefficient that the points do not identify, as a share of one point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the coefficients.

    Attributes:
        floor_ms: Least time of the linear term.
        low: Least values of the other coefficients, in the order of OTHERS.
        high: Largest values.
        usual: Values of those that the points do not identify, as far as they leave them free.
        free: Which ones that is.
    """

    floor_ms: float
    low: FloatArray
    high: FloatArray
    usual: FloatArray
    free: np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Coefficients with the least error for given kinks.

    Attributes:
        table: Points (tokens, ms) of the linear term.
        others: The other coefficients, in the order of OTHERS.
        error: Sum of the relative errors.
    """

    table: tuple[tuple[float, float], ...]
    others: FloatArray
    error: float


def find_kinks(columns: Columns, bounds: Bounds) -> Solution:
    """Fit all coefficients, with as many kinks of the linear term as the points support.

    One kink after the other is added where it lowers the error most, and all are moved to where the error is
    least. A kink must pay for its two parameters by the Bayesian information criterion of errors with a
    Laplace distribution.
    """
    count = len(columns.ms)

    def error(kinks: Sequence[float]) -> float:
        return _solve(columns, bounds, kinks).error

    def score(kinks: Sequence[float]) -> float:
        return 2 * count * math.log(max(_ERROR_MIN, error(kinks) / count)) + 2 * len(kinks) * math.log(count)

    kinks: list[float] = []
    while len(kinks) < min(_KINKS_MAX, len(np.unique(columns.tokens)) - 2):
        more = _with_one_more(columns.tokens, kinks, error)
        if score(more) >= score(kinks):
            break
        kinks = more
    return _solve(columns, bounds, kinks)


def _with_one_more(
    tokens: FloatArray, kinks: list[float], error: Callable[[Sequence[float]], float]
) -> list[float]:
    ends = float(tokens.min()), float(tokens.max())
    step = (ends[1] / ends[0]) ** (1 / (_CANDIDATES + 1))
    candidates = [ends[0] * step**n for n in range(1, _CANDIDATES + 1)]
    best = min(candidates, key=lambda at: error(sorted([*kinks, at])))
    placed = sorted([*kinks, best])
    for turn in (placed.index(best), *range(len(placed)), *reversed(range(len(placed)))):
        placed = _moved(placed, turn, ends, step, error)
        if len(placed) == 1:
            break
    return placed


def _moved(
    kinks: list[float],
    turn: int,
    ends: tuple[float, float],
    step: float,
    error: Callable[[Sequence[float]], float],
) -> list[float]:
    """Move one kink, by one step of the candidates at most, to where the error is least."""
    around = [ends[0], *kinks, ends[1]]
    low = math.log(max(around[turn], kinks[turn] / step))
    high = math.log(min(around[turn + 2], kinks[turn] * step))

    def at(position: float) -> float:
        return error([*kinks[:turn], math.exp(position), *kinks[turn + 1 :]])

    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if at(left) <= at(right):
            high = right
        else:
            low = left
    found = (low + high) / 2
    if at(found) > error(kinks):
        return kinks
    return [*kinks[:turn], math.exp(found), *kinks[turn + 1 :]]


def _solve(columns: Columns, bounds: Bounds, kinks: Sequence[float]) -> Solution:
    knots = [float(columns.tokens.min()), *kinks]
    rises = segments(columns.tokens, knots)
    matrix = np.column_stack([np.ones_like(columns.ms), rises, columns.others]) / columns.ms[:, None]
    low = np.concatenate([[bounds.floor_ms], np.zeros(len(knots)), bounds.low])
    high = np.concatenate([np.full(1 + len(knots), np.inf), bounds.high])
    rows, target = _preferences(matrix, 1 + len(knots), bounds)
    x, _ = least_absolute(
        np.vstack([matrix, rows]), np.concatenate([np.ones_like(columns.ms), target]), low, high
    )
    ends = [*knots, max(float(columns.tokens.max()), knots[-1] + 1.0)]
    rise = np.concatenate([[0.0], np.cumsum(x[1 : 1 + len(knots)] * np.diff(ends))])
    return Solution(
        table=tuple(zip(ends, (x[0] + rise).tolist(), strict=True)),
        others=x[1 + len(knots) :],
        error=float(np.abs(matrix @ x - 1.0).sum()),
    )


def _preferences(matrix: FloatArray, first: int, bounds: Bounds) -> tuple[FloatArray, FloatArray]:
    """Return a faint row for each unidentified coefficient that draws it to its usual value."""
    free = np.flatnonzero(bounds.free)
    rows = np.zeros((len(free), matrix.shape[1]))
    largest = matrix[:, first + free].max(axis=0)
    # A column of zeros leaves its coefficient to this row alone, so any weight will do.
    weights = _PREFERENCE * np.where(largest > 0, largest, 1.0 / np.maximum(bounds.usual[free], 1e-9))
    rows[np.arange(len(free)), first + free] = weights
    return rows, weights * bounds.usual[free]
