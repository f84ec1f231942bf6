"""The exact solver: a problem in, a plan with a proof out."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import problem_arrays
from qlm.planner.exact.answer import ExactAnswer, Found
from qlm.planner.exact.incumbent import incumbent
from qlm.planner.exact.lanes import Lanes, problem_lanes
from qlm.planner.exact.least import least_costs
from qlm.planner.exact.limits import (
    EXACT_GROUPS_MAX,
    EXACT_INSTANCES_MAX,
    POSITION_GROUPS_MAX,
    TIME_LIMIT_S,
)
from qlm.planner.exact.objective import chances, sample_average
from qlm.planner.exact.patterns import solve_by_patterns
from qlm.planner.exact.position.solve import solve_by_positions
from qlm.planner.exact.scenarios import Scenarios, draw_scenarios
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.referee import verify

Form = Literal["patterns", "positions"]
"""How to solve. Positions are the paper's own form and the referee on small problems; patterns prove more in
less time at every size."""

PROVEN = "exact"
"""Method of a plan that no plan is better than on the scenarios."""

NOT_PROVEN = "exact, not proven"
"""Method of a plan that ran into a limit."""


def solve_exact(
    problem: Problem,
    *,
    scenarios: int | None = None,
    seed: int = 0,
    time_limit_s: float | None = TIME_LIMIT_S,
    objective: Objective = "requests",
    stopwatch: Callable[[], float] | None = None,
) -> Plan:
    """Plan to proven optimality (QLM, equations 6-13).

    Args:
        problem: At most `EXACT_GROUPS_MAX` placeable groups on `EXACT_INSTANCES_MAX` instances.
        scenarios: Of the sample-average program; None takes the expectation itself, under the normal model.
        seed: Of the sample.
        time_limit_s: When to stop with what there is; None for never.
        objective: What a group costs.
        stopwatch: Reads seconds; fills `solve_s` if given.

    Returns:
        A plan with each placeable group on one queue; `method` says whether it is proven. `lower_bound_s` is
        None if scenarios were sampled: a bound on these says nothing for sure about the expectation
        (`solve_on` gives it).

    Raises:
        InvalidValueError: The problem is larger than that, or an argument is out of range.
    """
    begin_s = stopwatch() if stopwatch else None
    drawn = None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=seed)
    plan = solve_on(problem, drawn, time_limit_s=time_limit_s, objective=objective).plan
    if stopwatch is None or begin_s is None:
        return plan
    return replace(plan, solve_s=stopwatch() - begin_s)


def solve_on(
    problem: Problem,
    scenarios: Scenarios | None,
    *,
    time_limit_s: float | None = TIME_LIMIT_S,
    objective: Objective = "requests",
    form: Form = "patterns",
) -> ExactAnswer:
    """Plan to proven optimality on given scenarios, or under the normal model.

    Args:
        problem: As for `solve_exact`.
        scenarios: From `draw_scenarios` on it; None for the expectation itself.
        time_limit_s: When to stop with what there is; None for never.
        objective: What a group costs.
        form: How to solve. The position form needs scenarios, if anything is uncertain.

    Raises:
        InvalidValueError: As for `solve_exact`.
    """
    _check(problem, time_limit_s, form)
    lanes = problem_lanes(problem, scenarios, objective) if problem.instances else None
    if lanes is None or not len(lanes.groups):
        found = Found(queues=[[] for _ in problem.instances], value_s=0.0, bound_s=0.0)
    else:
        found = _solve(problem, lanes, time_limit_s, form)
    return _answer(problem, scenarios, objective, found)


def _check(problem: Problem, time_limit_s: float | None, form: Form) -> None:
    groups, instances = int(problem_arrays(problem).placeable.sum()), len(problem.instances)
    groups_max = EXACT_GROUPS_MAX if form == "patterns" else POSITION_GROUPS_MAX
    if groups > groups_max:
        raise InvalidValueError(
            "groups that can run", groups, f"at most {groups_max} for method exact; fast takes more"
        )
    if instances > EXACT_INSTANCES_MAX:
        raise InvalidValueError(
            "instances", instances, f"at most {EXACT_INSTANCES_MAX} for method exact; fast takes more"
        )
    if time_limit_s is not None and not (math.isfinite(time_limit_s) and time_limit_s >= 0):
        raise InvalidValueError("time_limit_s", time_limit_s, "a finite number, 0 or more")


def _solve(problem: Problem, lanes: Lanes, time_limit_s: float | None, form: Form) -> Found:
    least_s = least_costs(lanes)
    queues, value_s = incumbent(problem, lanes)
    start = Found(queues=queues, value_s=value_s, bound_s=float(least_s.sum()))
    if start.proven:
        return start
    if form == "positions":
        if not lanes.lanes[0].sampled:
            raise InvalidValueError("scenarios", None, "scenarios, for the position form of uncertain times")
        return solve_by_positions(lanes, start, time_limit_s=time_limit_s)
    return solve_by_patterns(lanes, least_s, start, time_limit_s=time_limit_s)


def _answer(problem: Problem, scenarios: Scenarios | None, objective: Objective, found: Found) -> ExactAnswer:
    arrays = problem_arrays(problem)
    placeable = arrays.placeable.nonzero()[0]
    plan = arrays.plan(
        [[int(placeable[g]) for g in queue] for queue in found.queues],
        method=PROVEN if found.proven else NOT_PROVEN,
    )
    if scenarios is None:
        report = verify(problem, plan, objective=objective)
        value_s, met = report.penalty_s, {row.group: 1.0 - row.p_last_late for row in report.rows}
    else:
        value_s, met = (
            sample_average(problem, plan, scenarios, objective=objective),
            chances(problem, plan, scenarios),
        )
    bound_s = min(found.bound_s, value_s)
    return ExactAnswer(
        plan=replace(plan, lower_bound_s=bound_s) if scenarios is None else plan,
        value_s=value_s,
        lower_bound_s=bound_s,
        proven=found.proven,
        chances=met,
    )
