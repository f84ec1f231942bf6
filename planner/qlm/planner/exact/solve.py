"""The exact solver: a problem in, a plan with a proof out."""

import math
from dataclasses import replace

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import Floats, problem_arrays
from qlm.planner.exact.answer import ExactAnswer, Solution
from qlm.planner.exact.incumbent import find_incumbent
from qlm.planner.exact.lanes import Lanes, problem_lanes
from qlm.planner.exact.least import least_costs
from qlm.planner.exact.limits import EXACT_GROUPS_MAX, EXACT_INSTANCES_MAX, TIME_LIMIT_S
from qlm.planner.exact.objective import chances, sample_average
from qlm.planner.exact.patterns import solve_by_patterns
from qlm.planner.exact.scenarios import Scenarios, draw_scenarios
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.referee import verify

PROVEN = "exact"
"""Method of a plan that is proven optimal, on the scenarios if these were sampled."""

NOT_PROVEN = "exact, not proven"
"""Method of a plan that ran into a limit."""


def solve_exact(
    problem: Problem,
    *,
    scenarios: int | None = None,
    seed: int = 0,
    time_limit_s: float | None = TIME_LIMIT_S,
    objective: Objective = "requests",
) -> Plan:
    """Plan to proven optimality (QLM, equations 6-13).

    Args:
        problem: At most `EXACT_GROUPS_MAX` placeable groups on `EXACT_INSTANCES_MAX` instances.
        scenarios: Number of scenarios of the sample-average program; None takes the expectation itself,
            under the normal model.
        seed: Seed of the sample.
        time_limit_s: Time after which to stop with the incumbent; None for never.
        objective: Penalty to minimise.

    Returns:
        A plan with each placeable group on one queue; `method` says whether it is proven. `lower_bound_s` is
        None if scenarios were sampled: a bound on a sample is no bound on the expectation (`solve_on`
        returns it).

    Raises:
        InvalidValueError: The problem is larger than that, or an argument is out of range.
    """
    drawn = None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=seed)
    return solve_on(problem, drawn, time_limit_s=time_limit_s, objective=objective).plan


def solve_on(
    problem: Problem,
    scenarios: Scenarios | None,
    *,
    time_limit_s: float | None = TIME_LIMIT_S,
    objective: Objective = "requests",
) -> ExactAnswer:
    """Plan to proven optimality on given scenarios, or under the normal model.

    Args:
        problem: As for `solve_exact`.
        scenarios: Result of `draw_scenarios` on it; None for the expectation itself.
        time_limit_s: Time after which to stop with the incumbent; None for never.
        objective: Penalty to minimise.

    Raises:
        InvalidValueError: As for `solve_exact`.
    """
    _check(problem, time_limit_s)
    lanes = problem_lanes(problem, scenarios, objective) if problem.instances else None
    if lanes is None or not len(lanes.groups):
        return exact_answer(problem, scenarios, objective, Solution.empty(problem))
    least_s = least_costs(lanes)
    solution = first_solution(problem, lanes, least_s)
    if not solution.proven:
        solution = solve_by_patterns(lanes, least_s, solution, time_limit_s=time_limit_s)
    return exact_answer(problem, scenarios, objective, solution)


def _check(problem: Problem, time_limit_s: float | None) -> None:
    groups, instances = int(problem_arrays(problem).placeable.sum()), len(problem.instances)
    for what, count, most in (
        ("groups that can run", groups, EXACT_GROUPS_MAX),
        ("instances", instances, EXACT_INSTANCES_MAX),
    ):
        if count > most:
            raise InvalidValueError(what, count, f"at most {most} for method exact; fast takes more")
    if time_limit_s is not None and not (math.isfinite(time_limit_s) and time_limit_s >= 0):
        raise InvalidValueError("time_limit_s", time_limit_s, "a finite number, 0 or more")


def first_solution(problem: Problem, lanes: Lanes, least_s: Floats) -> Solution:
    """Return the incumbent of local search, with the sum of the least costs as its bound."""
    queues, penalty_s = find_incumbent(problem, lanes)
    return Solution(queues=queues, penalty_s=penalty_s, bound_s=float(least_s.sum()))


def exact_answer(
    problem: Problem, scenarios: Scenarios | None, objective: Objective, solution: Solution
) -> ExactAnswer:
    """Write a solution as a plan, and price it again: by the referee, or on the scenarios."""
    arrays = problem_arrays(problem)
    placeable = arrays.placeable.nonzero()[0]
    plan = arrays.plan(
        [[int(placeable[g]) for g in queue] for queue in solution.queues],
        method=PROVEN if solution.proven else NOT_PROVEN,
    )
    if scenarios is None:
        report = verify(problem, plan, objective=objective)
        penalty_s, met = report.penalty_s, {row.group: 1.0 - row.p_last_late for row in report.rows}
    else:
        penalty_s = sample_average(problem, plan, scenarios, objective=objective)
        met = chances(problem, plan, scenarios)
    bound_s = min(solution.bound_s, penalty_s)
    return ExactAnswer(
        plan=replace(plan, lower_bound_s=bound_s) if scenarios is None else plan,
        penalty_s=penalty_s,
        lower_bound_s=bound_s,
        proven=solution.proven,
        chances=met,
    )
