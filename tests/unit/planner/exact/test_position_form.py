"""The position form: what its constraints are called, and what they say of a solution."""

import random

import pyomo.environ as pyo
import pytest

from qlm.planner.exact.highs import solve_model
from qlm.planner.exact.lanes import Lanes, problem_lanes
from qlm.planner.exact.least import least_costs
from qlm.planner.exact.master import master_model
from qlm.planner.exact.patterns import all_patterns, label_lanes
from qlm.planner.exact.scenarios import draw_scenarios
from support.exact_planning import Shape, random_problem
from support.position_form.build import position_model

pytestmark = pytest.mark.timeout(400)  # the first call compiles

FAMILIES = {
    "each_group_once",
    "one_group_per_position",
    "no_gaps",
    "rank_once",
    "rank_in_turn",
    "priority_order",
    "pairs_leave",
    "pairs_arrive",
    "first_here",
    "first_before",
    "first_once",
    "timing",
    "begin_behind",
    "begin_earliest",
    "lateness",
    "missing",
    "penalty_of",
    "at_least",
    "equal_groups",
    "identical_instances",
    "cutoff",
}


def lanes_of(seed: int, groups: int = 3) -> Lanes:
    problem = random_problem(Shape(groups=groups, instances=2, models=2), random.Random(seed))
    return problem_lanes(problem, draw_scenarios(problem, scenarios=3, seed=seed), "requests")


def test_constraints_are_named_by_family() -> None:
    model = position_model(lanes_of(1), cutoff_s=1e9)
    assert {family.name for family in model.component_objects(pyo.Constraint)} == FAMILIES


@pytest.mark.parametrize("seed", range(6))
def test_pairs_and_first_uses_are_whole_in_a_solution(seed: int) -> None:
    model = position_model(lanes_of(seed), cutoff_s=1e9)
    assert solve_model(model, time_limit_s=None).optimal
    values = [v.value for family in (model.pair, model.first) for v in family.values()]
    assert all(min(abs(value), abs(value - 1)) < 1e-6 for value in values)


@pytest.mark.parametrize("seed", range(6))
def test_relaxed_patterns_are_a_bound_at_least_as_tight_as_least_costs(seed: int) -> None:
    lanes = lanes_of(seed, groups=5)
    least_s = least_costs(lanes)
    labelled = label_lanes(lanes, least_s, cutoff_s=1e9, steps_max=None)
    assert labelled is not None
    patterns = all_patterns(labelled)
    relaxed = solve_model(master_model(lanes, patterns, relaxed=True), time_limit_s=None).bound_s
    whole = solve_model(master_model(lanes, patterns), time_limit_s=None).bound_s
    assert least_s.sum() - 1e-6 <= relaxed <= whole + 1e-6 * max(1.0, whole)
