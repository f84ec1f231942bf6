"""Grid of times at which the relaxation constrains capacity: the same for every problem.

It depends neither on deadlines nor on the fleet. Otherwise a longer deadline could move an edge, and so
raise the bound.
"""

import math
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats

FIRST_S: Final = 0.1
"""Length of the first step, seconds."""

END_MAX_S: Final = 1e11
"""Last edge, seconds; later than all work that `limits` allows."""


def edges_until(end_s: float, growth: float) -> Floats:
    """Return the edges of the grid, up to the first at or behind `end_s`.

    The j-th is FIRST_S ((1 + growth)^j - 1) / growth: steps of FIRST_S at first, of a share `growth` of
    the time since now later.

    Args:
        end_s: Seconds from now.
        growth: Relative growth of each step over the one before; positive.

    Returns:
        Seconds from now, the first is 0; at least two.
    """
    scale_s = FIRST_S / growth
    steps = max(1, math.ceil(math.log1p(min(end_s, END_MAX_S) / scale_s) / math.log1p(growth)))
    edges: Floats = scale_s * np.expm1(np.arange(steps + 1) * math.log1p(growth))
    return edges
