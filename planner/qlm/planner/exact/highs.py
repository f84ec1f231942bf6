"""Calls of HiGHS on Pyomo models."""

import math
from dataclasses import dataclass

import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import SolutionStatus
from pyomo.contrib.solver.solvers.highs import Highs

from qlm.planner.exact.limits import PROVEN_GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of the solver; the values of variables are in the model.

    Attributes:
        found: There is a solution.
        optimal: It is proven optimal.
        bound_s: Lower bound; -inf if the solver proved none.
        took_s: Time of the solver.
        duals: Dual values by constraint family and index, for a linear program solved to optimality; else
            empty.
    """

    found: bool
    optimal: bool
    bound_s: float
    took_s: float
    duals: dict[tuple[str, int], float]


def solve_model(
    model: pyo.ConcreteModel, *, time_limit_s: float | None, duals_of: tuple[str, ...] = ()
) -> Outcome:
    """Minimise a linear or mixed-integer linear model to optimality, on one thread.

    Args:
        model: Model with one objective; receives the values of the best solution.
        time_limit_s: Time after which to stop; None for never.
        duals_of: Constraint families whose duals are wanted; none if the model has integers.
    """
    solver = Highs()
    solver.config.time_limit = time_limit_s
    solver.config.rel_gap = 0.0
    solver.config.abs_gap = PROVEN_GAP
    solver.config.threads = 1
    solver.config.load_solutions = False
    solver.config.raise_exception_on_nonoptimal_result = False
    result = solver.solve(model)
    optimal = result.solution_status == SolutionStatus.optimal
    found = optimal or result.solution_status == SolutionStatus.feasible
    if found:
        result.solution_loader.load_vars()
    bound_s = result.objective_bound
    return Outcome(
        found=found,
        optimal=optimal,
        bound_s=-math.inf if bound_s is None or not math.isfinite(bound_s) else float(bound_s),
        took_s=float(result.timing_info.highs_time),
        duals=_duals(model, result.solution_loader, duals_of) if optimal else {},
    )


def _duals(
    model: pyo.ConcreteModel, loader: object, families: tuple[str, ...]
) -> dict[tuple[str, int], float]:
    if not families:
        return {}
    duals = loader.get_duals()  # type: ignore[attr-defined]
    return {
        (family, at): float(duals[constraint])
        for family in families
        for at, constraint in model.component(family).items()
    }
