"""Solving by positions: build the model, call the solver, read the queues back."""

import pyomo.environ as pyo

from qlm.planner.exact.answer import ExactAnswer, Solution
from qlm.planner.exact.highs import solve_model
from qlm.planner.exact.incumbent import Queues, penalty_of
from qlm.planner.exact.lanes import Lanes, problem_lanes
from qlm.planner.exact.least import least_costs
from qlm.planner.exact.limits import PROVEN_GAP
from qlm.planner.exact.scenarios import Scenarios
from qlm.planner.exact.solve import exact_answer, first_solution
from qlm.planner.problem import Objective, Problem
from support.position_form.build import position_model
from support.position_form.sets import Sets


def solve_positions(
    problem: Problem,
    scenarios: Scenarios,
    *,
    time_limit_s: float | None = None,
    objective: Objective = "requests",
) -> ExactAnswer:
    """Plan to proven optimality on given scenarios, as `solve_on` does, in the position form.

    Args:
        problem: With at most some five groups and at least one that can run.
        scenarios: From `draw_scenarios` on it.
        time_limit_s: When to stop; None for never.
        objective: What a group costs.
    """
    lanes = problem_lanes(problem, scenarios, objective)
    solution = Solution.empty(problem)
    if len(lanes.groups):
        solution = first_solution(problem, lanes, least_costs(lanes))
        if not solution.proven:
            solution = _solve(lanes, solution, time_limit_s=time_limit_s)
    return exact_answer(problem, scenarios, objective, solution)


def _solve(lanes: Lanes, incumbent: Solution, *, time_limit_s: float | None) -> Solution:
    slack_s = PROVEN_GAP * max(1.0, abs(incumbent.penalty_s))
    model = position_model(lanes, cutoff_s=incumbent.penalty_s + slack_s)
    outcome = solve_model(model, time_limit_s=time_limit_s)
    bound_s = max(outcome.bound_s, incumbent.bound_s)
    if outcome.found:
        queues = _queues(model, lanes)
        penalty_s = penalty_of(lanes, queues)
        if penalty_s < incumbent.penalty_s:
            return Solution(queues=queues, penalty_s=penalty_s, bound_s=bound_s)
    return Solution(queues=incumbent.queues, penalty_s=incumbent.penalty_s, bound_s=bound_s)


def _queues(model: pyo.ConcreteModel, lanes: Lanes) -> Queues:
    sets = Sets(lanes)
    queues: Queues = [[] for _ in sets.queues]
    taken = [key for key in sets.places if model.place[key].value > 0.5]
    for i, _, g, _ in sorted(taken, key=lambda key: key[3]):
        queues[sets.instance[g]].append(i)
    return queues
