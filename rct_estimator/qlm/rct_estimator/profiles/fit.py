"""Fit of the duration of an iteration: least relative error within what physics allows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from qlm.rct_estimator.profiles.columns import OTHERS, Columns, unidentified
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.kinks import Bounds, Solution, find_kinks
from qlm.rct_estimator.profiles.points import FitPoint, FitPoints, errors

_BANDWIDTH_SHARES: Final = (0.5, 0.75, 1.0)
"""Shares of the memory bandwidth at which attention reads the KV cache: least, usual, most."""
_FLOOR_SHARE_MIN: Final = 0.01
"""Least time of an iteration, as a share of the shortest one: one without work takes time too."""
_JUDGE_OF: Final = 5
"""One of so many iterations of each kind judges the fit."""
_DIGITS: Final = 6
_COLLINEAR: Final = 1e-4
"""Relative distance from the line between its neighbours at which a point of the table is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """What bounds the coefficients; each is None where it is not known.

    Attributes:
        kv_read_ms: Time in which the memory bandwidth of all GPUs reads the KV of one token, milliseconds.
        weights_read_ms: Time in which it reads the weights.
    """

    kv_read_ms: float | None = None
    weights_read_ms: float | None = None

    @classmethod
    def of(
        cls, *, kv_bytes_per_token: float, weights_bytes: float, bandwidth_bytes_per_s: float
    ) -> "Physics":
        """Return the bounds of a model on accelerators with this memory bandwidth, in total."""
        return cls(
            kv_read_ms=1e3 * kv_bytes_per_token / bandwidth_bytes_per_s,
            weights_read_ms=1e3 * weights_bytes / bandwidth_bytes_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Fitted coefficients.

    Attributes:
        iteration: The coefficients.
        fit: The points, with the errors there and the coefficients that they do not identify.
        at_limit: Coefficients that the points would move beyond what physics allows.
    """

    iteration: IterationTime
    fit: FitPoints
    at_limit: tuple[str, ...] = ()


def fit_iteration(points: Sequence[FitPoint], physics: Physics | None = None) -> Fitted:
    """Fit the coefficients of an iteration to timed ones.

    Minimises the mean relative error, which some iterations that were disturbed hardly move. A fifth of the
    iterations of each kind (prompts, decodes, both) is left out and judges the fit. The time on the host is
    part of every iteration, so it counts in the linear term and is named as unidentified.

    Args:
        points: Timed iterations, at least one.
        physics: Bounds of the coefficients.

    Raises:
        InvalidValueError: There is no point, or one has an impossible value.
    """
    checked = FitPoints(points=tuple(points), error_mean=0.0, error_max=0.0).points
    columns = Columns.of(split(checked)[0])
    lost = unidentified(columns)
    has_mixed = "kv_mixed_ms" not in lost
    columns = columns if has_mixed else columns.with_one_kv()
    bounds = _bounds(columns, lost, physics or Physics())
    solution = find_kinks(columns, bounds)
    iteration = _iteration(solution, has_mixed=has_mixed)
    fit = judge(iteration, checked, ("host_ms", *lost))
    return Fitted(iteration=iteration, fit=fit, at_limit=_at_limit(solution, bounds, lost))


def judge(
    iteration: IterationTime, points: Sequence[FitPoint], unidentified: Sequence[str] = ()
) -> FitPoints:
    """Return the points with the errors that these coefficients have there, to two digits.

    Args:
        iteration: The coefficients.
        points: Those of the fit and those held out, as `split` divides them.
        unidentified: Coefficients that the points do not identify.
    """
    kept, unseen = split(points)
    mean, largest = _errors(iteration, kept)
    held_out = _errors(iteration, unseen) if unseen else (None, None)
    return FitPoints(
        points=tuple(points),
        error_mean=mean,
        error_max=largest,
        held_out_mean=held_out[0],
        held_out_max=held_out[1],
        unidentified=tuple(unidentified),
    )


def split(points: Sequence[FitPoint]) -> tuple[list[FitPoint], list[FitPoint]]:
    """Divide points into those to fit and those to judge by: every fifth of each kind, ends never."""
    judges: set[int] = set()
    for kind in ((True, False), (False, True), (True, True)):
        of_kind = [n for n, p in enumerate(points) if (p.prompts > 0, p.decodes > 0) == kind]
        of_kind.sort(key=lambda n: (points[n][:5], n))
        judges.update(of_kind[_JUDGE_OF // 2 :: _JUDGE_OF] if len(of_kind) >= _JUDGE_OF else ())
    return (
        [p for n, p in enumerate(points) if n not in judges],
        [p for n, p in enumerate(points) if n in judges],
    )


def _bounds(columns: Columns, lost: Sequence[str], physics: Physics) -> Bounds:
    shortest = float(columns.ms.min())
    low, high, usual = np.zeros(len(OTHERS)), np.full(len(OTHERS), math.inf), np.zeros(len(OTHERS))
    if physics.kv_read_ms is not None:
        least, typical, most = (physics.kv_read_ms / share for share in reversed(_BANDWIDTH_SHARES))
        low[:2], high[0], usual[:2] = least, most, typical
    return Bounds(
        # An iteration that was shorter than a reading of all weights did not read all.
        floor_ms=max(_FLOOR_SHARE_MIN * shortest, min(shortest, physics.weights_read_ms or 0.0)),
        low=low,
        high=high,
        usual=usual,
        free=np.array([name in lost for name in OTHERS]),
    )


def _at_limit(solution: Solution, bounds: Bounds, lost: Sequence[str]) -> tuple[str, ...]:
    names = []
    for number, name in enumerate(OTHERS):
        value, low, high = solution.others[number], bounds.low[number], bounds.high[number]
        if name not in lost and low > 0 and (value <= low * 1.001 or value >= high * 0.999):
            names.append(name)
    return tuple(names)


def _iteration(solution: Solution, *, has_mixed: bool) -> IterationTime:
    others = dict(zip(OTHERS, (_digits(value) for value in solution.others.tolist()), strict=True))
    mixed = others.pop("kv_mixed_ms")
    table = _without_collinear([(_digits(tokens), _digits(ms)) for tokens, ms in solution.table])
    return IterationTime(host_ms=0.0, linear_ms=table, kv_mixed_ms=mixed if has_mixed else None, **others)


def _without_collinear(table: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    kept = table[:1]
    for (x1, y1), (x2, y2) in pairwise(table[1:]):
        x0, y0 = kept[-1]
        between = y0 + (y2 - y0) * (x1 - x0) / (x2 - x0)
        if abs(y1 - between) > _COLLINEAR * y1:
            kept.append((x1, y1))
    return (*kept, *table[1:][-1:])


def _errors(iteration: IterationTime, points: Sequence[FitPoint]) -> tuple[float, float]:
    mean, largest = (min(1.0, each) for each in errors(iteration, points))
    return min(_digits(mean, 2), _digits(largest, 2)), _digits(largest, 2)


def _digits(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")
