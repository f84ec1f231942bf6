"""Non-negative least squares for equations 14 and 15 of SLO-aware annealing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.iteration import Coefficients

_PREFERENCE: Final = ("delta", "alpha", "beta", "gamma")
"""Order of preference among coefficients that the points do not identify. With one request per iteration,
time per token counts as `alpha`, not as `gamma`, so that it is right for larger batches too."""
_COLLINEAR: Final = 1e-6
"""Relative distance to the span of other columns below which a coefficient is not identified."""
_DELTA_SHARE_MIN: Final = 0.01
"""Lower bound of `delta`, as a share of the shortest time: an empty iteration takes time too."""
_TOLERANCE: Final = 1e-10


class LinePoint(NamedTuple):
    """One timed iteration of `batch` requests with `tokens` tokens each."""

    batch: float
    tokens: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted coefficients with their errors at the points.

    Attributes:
        coefficients: Fitted coefficients, in milliseconds.
        r2: Explained share of the variance of the times; 1 if constant times are met exactly.
        error_mean: Mean relative error.
        error_max: Largest relative error.
        unidentified: Coefficients that the points do not identify; they are 0.
    """

    coefficients: Coefficients
    r2: float
    error_mean: float
    error_max: float
    unidentified: tuple[str, ...]


def fit_coefficients(points: Sequence[LinePoint]) -> Fit:
    """Fit equation 14 or 15 to timed iterations.

    Minimises relative errors, since points span orders of magnitude, and a schedule sums many short
    iterations as well as few long ones. `delta` is at least 1 % of the shortest time.

    Args:
        points: Timed iterations, at least one; fewer than four distinct ones leave coefficients unidentified.

    Raises:
        InvalidValueError: There is no point, or one is not positive and finite.
    """
    if not points:
        raise InvalidValueError("points", points, "at least one point")
    batch, tokens, ms = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    for name, column in (("batch", batch), ("tokens", tokens), ("ms", ms)):
        if not (np.isfinite(column).all() and (column > 0).all()):
            raise InvalidValueError(f"points.{name}", column.tolist(), "positive numbers")
    columns = {"delta": np.ones_like(ms), "alpha": batch * tokens, "beta": batch, "gamma": tokens}
    kept = _identified({name: column / ms for name, column in columns.items()})
    floor = _DELTA_SHARE_MIN * float(ms.min())
    matrix = np.column_stack([columns[name] / ms for name in kept])
    values = dict.fromkeys(_PREFERENCE, 0.0)
    values |= dict(zip(kept, nnls(matrix, 1 - floor / ms).tolist(), strict=True))
    values["delta"] += floor
    coefficients = Coefficients(**values)
    lost = tuple(name for name in _PREFERENCE if name not in kept)
    return _judged(coefficients, points, unidentified=lost)


def errors(coefficients: Coefficients, points: Sequence[LinePoint]) -> tuple[float, float]:
    """Return the mean and the largest relative error of coefficients at the points."""
    each = [abs(coefficients.ms(point.batch, point.tokens) / point.ms - 1) for point in points]
    return sum(each) / len(each), max(each)


def nnls(matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Minimise |matrix x - target| over x >= 0, by the active-set method of Lawson and Hanson.

    Source: C. L. Lawson, R. J. Hanson, Solving Least Squares Problems (1974), chapter 23.

    Args:
        matrix: Shape (points, coefficients), float64; columns may differ in size by many orders.
        target: Shape (points,), float64.

    Returns:
        x, shape (coefficients,), float64.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1
    scaled = matrix / scale
    x = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    refused = np.zeros_like(free)
    threshold = _TOLERANCE * max(1.0, float(np.linalg.norm(target)))
    for _round in range(30 * matrix.shape[1]):
        gradient = np.where(free | refused, -np.inf, scaled.T @ (target - scaled @ x))
        entering = int(np.argmax(gradient))
        if gradient[entering] <= threshold:
            return np.asarray(x / scale)
        free[entering] = True
        x = _feasible_step(scaled, target, x, free)
        # Rounding can remove a nearly collinear column again at once: do not retry it forever.
        refused = np.zeros_like(free) if free[entering] else refused | (np.arange(free.size) == entering)
    raise AssertionError(f"no least squares solution after {30 * matrix.shape[1]} rounds")


def _feasible_step(
    matrix: npt.NDArray[np.float64],
    target: npt.NDArray[np.float64],
    x: npt.NDArray[np.float64],
    free: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    """Move to the optimum of the free coefficients; bind those that would turn negative."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        blocked = free & (best <= 0)
        if not blocked.any():
            return best
        span = np.where(blocked, x - best, 1).clip(min=np.finfo(float).tiny)
        steps = np.where(blocked, x / span, np.inf)
        x = x + steps.min() * (best - x)
        free &= ~blocked | ((x > _TOLERANCE) & (steps > steps.min()))
        x[~free] = 0


def _identified(columns: dict[str, npt.NDArray[np.float64]]) -> list[str]:
    """Choose the coefficients that the points identify, in the order of preference."""
    kept: list[str] = []
    basis: list[npt.NDArray[np.float64]] = []
    for name in _PREFERENCE:
        rest = columns[name] / np.linalg.norm(columns[name])
        for _twice in range(2):
            for direction in basis:
                rest = rest - direction * (direction @ rest)
        length = float(np.linalg.norm(rest))
        if length > _COLLINEAR:
            kept.append(name)
            basis.append(rest / length)
    return kept


def _judged(coefficients: Coefficients, points: Sequence[LinePoint], *, unidentified: tuple[str, ...]) -> Fit:
    ms = np.array([point.ms for point in points])
    missed = np.array([coefficients.ms(point.batch, point.tokens) for point in points]) - ms
    variation, left = float(((ms - ms.mean()) ** 2).sum()), float((missed**2).sum())
    mean, largest = errors(coefficients, points)
    varied = variation > _TOLERANCE * float((ms**2).sum())
    r2 = 1 - left / variation if varied else float(largest < _COLLINEAR)
    return Fit(
        coefficients=coefficients, r2=r2, error_mean=mean, error_max=largest, unidentified=unidentified
    )
