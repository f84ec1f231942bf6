"""Penalty of one request, and its integral over requests with one standard deviation, in compiled code."""

import math
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.compiling.compiled import compiled
from qlm.planner.limits import ON_TIME_S

CERTAIN_SD: Final = 6.5
"""Standard deviations beyond which a normal probability is 0 or 1 to ten digits."""

_SQRT_HALF: Final = math.sqrt(0.5)
_DENSITY_0: Final = 1.0 / math.sqrt(2.0 * math.pi)

_CELLS_PER_SD: Final = 16
_CELLS: Final = 2 * int(CERTAIN_SD * _CELLS_PER_SD)
_ZERO_AT: Final = CERTAIN_SD * _CELLS_PER_SD
_CELLS_MASK: Final = 255
"""Mask that shows the compiler that a cell is not negative."""


def _integrals_table() -> Floats:
    """Tabulate z Phi + phi and ((z^2 + 1) Phi + z phi) / 2 by cubic Hermite interpolation.

    Both are right to 2e-8: the fourth derivative is below 1, and h^4 / 384 = 4e-8. The first cell holds for
    no lateness (0), the last for certain lateness (z, (z^2 + 1) / 2), also beyond the table.

    Returns:
        Coefficients from the constant on, four each, in the cell's own unit; (cells, 8).
    """
    step = 1.0 / _CELLS_PER_SD
    table = np.zeros((_CELLS, 8))
    for cell in range(1, _CELLS - 1):
        ends = [_integrals(-CERTAIN_SD + (cell + at) * step) for at in (0, 1)]
        for column in (0, 1):
            (slope_0, value_0), (slope_1, value_1) = (end[column : column + 2] for end in ends)
            rise, d0, d1 = value_1 - value_0, slope_0 * step, slope_1 * step
            table[cell, 4 * column : 4 * column + 4] = value_0, d0, 3 * rise - 2 * d0 - d1, d0 + d1 - 2 * rise
    last = CERTAIN_SD - step
    table[-1] = last, step, 0.0, 0.0, 0.5 * (last * last + 1.0), last * step, 0.5 * step * step, 0.0
    return table


def _integrals(z: float) -> tuple[float, float, float]:
    """Return Phi(z), its integral, and the integral of that."""
    below = 0.5 * math.erfc(-z * _SQRT_HALF)
    density = _DENSITY_0 * math.exp(-0.5 * z * z)
    return below, z * below + density, 0.5 * ((z * z + 1.0) * below + z * density)


_INTEGRALS: Final = _integrals_table()


@compiled(inline="always")
def _below(z: float) -> float:
    """Return the standard normal distribution function at z."""
    return 0.5 * math.erfc(-z * _SQRT_HALF)


@compiled(inline="always")
def request_penalty(late_s: float, var: float, miss_weight_s: float) -> float:
    """Return the penalty of one request: E[max(0, X)] + miss_weight_s P(X > 0) for X ~ N(late_s, var)."""
    if var <= 0.0:
        return late_s + miss_weight_s if late_s > ON_TIME_S else 0.0
    sd = math.sqrt(var)
    z = late_s / sd
    above = _below(z)
    return late_s * above + sd * _DENSITY_0 * math.exp(-0.5 * z * z) + miss_weight_s * above


@compiled(inline="always")
def part_penalty(from_s: float, to_s: float, sd: float, miss_weight_s: float) -> float:
    """Integrate the penalty over mean lateness, with one positive standard deviation."""
    per_cell = _CELLS_PER_SD / sd
    begin, end = from_s * per_cell + _ZERO_AT, to_s * per_cell + _ZERO_AT
    first = int(min(_CELLS - 1.0, max(0.0, begin))) & _CELLS_MASK
    last = int(min(_CELLS - 1.0, max(0.0, end))) & _CELLS_MASK
    begin -= first
    end -= last
    t = _INTEGRALS
    missed = t[last, 0] + end * (t[last, 1] + end * (t[last, 2] + end * t[last, 3]))
    missed -= t[first, 0] + begin * (t[first, 1] + begin * (t[first, 2] + begin * t[first, 3]))
    late = t[last, 4] + end * (t[last, 5] + end * (t[last, 6] + end * t[last, 7]))
    late -= t[first, 4] + begin * (t[first, 5] + begin * (t[first, 6] + begin * t[first, 7]))
    return float(sd * (miss_weight_s * missed + sd * late))
