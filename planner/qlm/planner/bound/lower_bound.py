"""A lower bound on the penalty of every plan of a problem, independent of any plan; docs/planner-bound.md."""

from typing import Final

import numpy as np

from qlm.planner.arrays import ProblemArrays, problem_arrays
from qlm.planner.bound.columns import column_generation_bound
from qlm.planner.bound.dual_ascent import ascent_bound
from qlm.planner.bound.relaxation import Weights, relaxation
from qlm.planner.problem import Problem

EXACT_PAIRS_MAX: Final = 100
"""Most pairs of a group with a deadline and an instance for which the relaxation is solved to optimality;
larger ones are bounded by ascent, some percent below."""

INSTANCE_PAIRS_MAX: Final = 4000
"""Most such pairs for which problems are relaxed per instance; larger ones are relaxed per kind."""

PASSES: Final = 10
"""Default passes of the ascent."""

ROUNDED: Final = 1e-9
"""Reduction of the bound for the rounding of sums: this share, and this many seconds."""


def lower_bound(problem: Problem, *, iterations: int = PASSES) -> float:
    """Return a lower bound on the `penalty_s` of every plan (normal model, closed form).

    Unplaceable groups cost nothing, as in plans. On problems of up to `EXACT_PAIRS_MAX` pairs a longer
    deadline never raises the bound, and neither does an added instance that runs no group which was
    unplaceable before; on larger problems that holds approximately.

    Args:
        problem: The problem.
        iterations: Passes of the ascent on larger problems; more are tighter and slower.

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
    """Return the lower bound of a problem's arrays; other weights bound other sums, such as misses alone.

    Args:
        arrays: The problem.
        iterations: See `lower_bound`.
        late_weight: Price of a second late: 1, or 0 to count misses only.
        miss_weight_s: Price of a miss; None for those of the problem, of promises too.
    """
    dated = int((arrays.placeable & np.isfinite(arrays.deadline_s)).sum())
    if not arrays.placeable.any():
        return 0.0
    pairs = dated * len(arrays.instances)
    weights = Weights(late=late_weight, miss_s=arrays.miss_weight_s, promise_s=arrays.promise_s)
    if miss_weight_s is not None:
        weights = Weights(late=late_weight, miss_s=miss_weight_s)
    by_kind = relaxation(arrays, weights, lanes="kind")
    if not dated:
        value = 0.0
    elif pairs <= EXACT_PAIRS_MAX:
        value = column_generation_bound(relaxation(arrays, weights, lanes="instance"))
    elif pairs <= INSTANCE_PAIRS_MAX:
        value = ascent_bound(by_kind, iterations, finer=relaxation(arrays, weights, lanes="instance"))
    else:
        value = ascent_bound(by_kind, iterations)
    return max(0.0, (by_kind.moves_s + value) * (1.0 - ROUNDED) - ROUNDED)
