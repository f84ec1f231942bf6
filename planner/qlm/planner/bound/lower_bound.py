"""A lower bound on the penalty of every plan of a problem, independent of any plan; docs/planner-bound.md."""

from typing import Final

import numpy as np

from qlm.planner.arrays import ProblemArrays, problem_arrays
from qlm.planner.bound.ascended import ascended_value
from qlm.planner.bound.columns import optimal_value
from qlm.planner.bound.relaxation import Weights, relaxation
from qlm.planner.problem import Problem

EXACT_PAIRS_MAX: Final = 100
"""Relaxations of at most so many pairs of a group with a deadline and an instance are solved to optimality;
larger ones by ascent, some percent below."""

INSTANCE_PAIRS_MAX: Final = 4000
"""Problems of at most so many such pairs are relaxed per instance, larger ones per kind."""

PASSES: Final = 10
"""Turns of each group in the ascent, where nothing else is said."""

ROUNDED: Final = 1e-9
"""The bound is lowered by this share, and by so many seconds, for the rounding of sums."""


def lower_bound(problem: Problem, *, iterations: int = PASSES) -> float:
    """Give a value that no plan's `penalty_s` (under the normal model, closed form) is below.

    Groups that cannot be placed cost nothing, as in plans. On problems of up to `EXACT_PAIRS_MAX` pairs
    a longer deadline never raises it, and neither does an added instance that runs no group which could
    not be placed before; on larger ones that holds only about.

    Args:
        problem: What waits, and the fleet.
        iterations: Turns of each group in the ascent of larger problems; more are tighter and slower.

    Returns:
        Seconds, 0 or more; the same for the same problem in any input order.
    """
    arrays = problem_arrays(problem)
    return bound_of(arrays, iterations=iterations)


def bound_of(
    arrays: ProblemArrays,
    *,
    iterations: int = PASSES,
    late_weight: float = 1.0,
    miss_weight_s: float | None = None,
) -> float:
    """Give the lower bound of a problem's arrays; other weights bound other sums, such as misses alone.

    Args:
        arrays: The problem.
        iterations: See `lower_bound`.
        late_weight: Price of a second late: 1, or 0 to count misses only.
        miss_weight_s: Price of a miss; None for the problem's.
    """
    dated = int((arrays.placeable & np.isfinite(arrays.deadline_s)).sum())
    if not arrays.placeable.any():
        return 0.0
    pairs = dated * len(arrays.instances)
    weights = Weights(
        late=late_weight, miss_s=arrays.miss_weight_s if miss_weight_s is None else miss_weight_s
    )
    by_kind = relaxation(arrays, weights, lanes="kind")
    if not dated:
        value = 0.0
    elif pairs <= EXACT_PAIRS_MAX:
        value = optimal_value(relaxation(arrays, weights, lanes="instance"))
    elif pairs <= INSTANCE_PAIRS_MAX:
        value = ascended_value(by_kind, iterations, finer=relaxation(arrays, weights, lanes="instance"))
    else:
        value = ascended_value(by_kind, iterations)
    return max(0.0, (by_kind.moves_s + value) * (1.0 - ROUNDED) - ROUNDED)
