"""Timed iterations as columns of numbers, one per coefficient, and which coefficients they identify."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.rct_estimator.profiles.iteration import FloatArray
from qlm.rct_estimator.profiles.points import FitPoint

OTHERS: Final = ("kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms")
"""Coefficients beside the linear term, in the order in which they are preferred where points cannot tell
them apart."""

_KNOT_RATIO: Final = 1.25
"""Numbers of tokens closer than this are one knot of the free linear term of `unidentified`."""
_RESIDUE_MIN: Final = 0.1
"""Least norm of what a column adds to the others, as a share of its largest entry. A coefficient below it
would be known ten times worse than a single iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Iterations as arrays of shape (points,).

    Attributes:
        tokens: Tokens computed.
        others: Column of each of OTHERS, shape (points, 5).
        ms: Durations.
    """

    tokens: FloatArray
    others: FloatArray
    ms: FloatArray

    @classmethod
    def of(cls, points: Sequence[FitPoint]) -> "Columns":
        """Read points."""
        rows = [
            (
                0.0 if p.prompts else p.decodes * p.context,
                p.decodes * p.context if p.prompts else 0.0,
                p.sequences,
                p.pairs,
                p.admissions,
            )
            for p in points
        ]
        return cls(
            tokens=np.array([p.tokens for p in points], dtype=np.float64),
            others=np.array(rows, dtype=np.float64),
            ms=np.array([p.ms for p in points], dtype=np.float64),
        )

    def with_one_kv(self) -> "Columns":
        """Return the columns for a profile without `kv_mixed_ms`: beside prompts `kv_ms` counts."""
        others, kv, mixed = self.others.copy(), OTHERS.index("kv_ms"), OTHERS.index("kv_mixed_ms")
        others[:, kv] += others[:, mixed]
        others[:, mixed] = 0.0
        return Columns(tokens=self.tokens, others=others, ms=self.ms)


def segments(tokens: FloatArray, knots: Sequence[float]) -> FloatArray:
    """Return the tokens of each iteration that lie between a knot and the next, shape (points, knots)."""
    starts = np.array(knots, dtype=np.float64)
    widths = np.append(np.diff(starts), np.inf)
    return np.asarray(np.clip(tokens[:, None] - starts, 0.0, widths), dtype=np.float64)


def unidentified(columns: Columns) -> tuple[str, ...]:
    """Return those of OTHERS that a linear term of some shape could replace.

    The linear term may here be any function of the tokens with a knot at each number of them that occurs, so
    a coefficient is identified only by iterations of nearly as many tokens that differ in its column.
    """
    weights = 1.0 / columns.ms
    base = np.column_stack([np.ones_like(columns.ms), segments(columns.tokens, _knots(columns.tokens))])
    lost = []
    for number, name in enumerate(OTHERS):
        column = columns.others[:, number] * weights
        others = np.delete(columns.others, number, axis=1)
        rest = np.column_stack([base, others]) * weights[:, None]
        if not separable(column, rest):
            lost.append(name)
    return tuple(lost)


def _knots(tokens: FloatArray) -> list[float]:
    """Return the numbers of tokens that occur, with those that are close together taken as one."""
    knots: list[float] = []
    for each in np.unique(tokens).tolist():
        if not knots or each >= _KNOT_RATIO * knots[-1]:
            knots.append(each)
    return knots


def separable(column: FloatArray, rest: FloatArray) -> bool:
    """Return whether a column adds enough to the others for its coefficient to be known."""
    largest = float(np.abs(column).max())
    if largest == 0:
        return False
    scale = np.linalg.norm(rest, axis=0)
    scaled = rest[:, scale > 0] / scale[scale > 0]
    solution = np.linalg.lstsq(scaled, column, rcond=1e-9)[0]
    return float(np.linalg.norm(column - scaled @ solution)) >= _RESIDUE_MIN * largest
