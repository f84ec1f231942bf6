"""The exact solver against all assignments and orders: 200 random problems, in both forms.

Up to 7 groups, 3 instances and 3 models; certain and uncertain times; 1 to 6 requests per group; warm and
cold swaps, moves, priorities, equal groups, kinds that lack a model, groups that run nowhere.
"""

import random

import pytest

from qlm.planner.exact.answer import ExactAnswer
from qlm.planner.exact.scenarios import Scenarios, draw_scenarios
from qlm.planner.exact.solve import solve_on
from qlm.planner.problem import Objective, Problem
from qlm.planner.verify.referee import verify
from support.exact_planning import Shape, best_value, random_problem
from support.position_form.solve import solve_positions

pytestmark = pytest.mark.timeout(400)  # the first call compiles
BATCH = 10


def problem_of(seed: int, groups: tuple[int, int]) -> tuple[Problem, Objective]:
    rng = random.Random(seed)
    shape = Shape(
        groups=rng.randint(*groups),
        instances=rng.randint(1, 3),
        models=rng.randint(1, 3),
        load=rng.choice([0.7, 1.0, 1.5]),
        spread=rng.choice([0.0, 0.3]),
    )
    return random_problem(shape, rng), rng.choice(["requests", "requests", "requests", "paper"])


def check(seed: int, groups: tuple[int, int], scenarios: int | None) -> None:
    problem, objective = problem_of(seed, groups)
    drawn = None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=seed)
    compare(seed, problem, drawn, objective, solve_on(problem, drawn, objective=objective, time_limit_s=None))


def compare(
    seed: int, problem: Problem, drawn: Scenarios | None, objective: Objective, answer: ExactAnswer
) -> None:
    best = best_value(problem, drawn, paper=objective == "paper")
    assert answer.proven, seed
    assert answer.plan.method == "exact", seed
    assert answer.penalty_s == pytest.approx(best, rel=1e-6, abs=1e-6), seed
    assert answer.lower_bound_s == pytest.approx(best, rel=2e-6, abs=2e-6), seed
    assert not verify(problem, answer.plan, objective=objective).violations, seed


@pytest.mark.parametrize("batch", range(6))
def test_patterns_find_the_best_on_scenarios(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(seed, (4, 6), scenarios=12)


@pytest.mark.parametrize("batch", range(6))
def test_patterns_find_the_best_expectation(batch: int) -> None:
    for seed in range(1000 + batch * BATCH, 1000 + (batch + 1) * BATCH):
        check(seed, (4, 6), scenarios=None)


@pytest.mark.parametrize("scenarios", [8, None])
@pytest.mark.parametrize("batch", range(2))
def test_patterns_find_the_best_of_7_groups(batch: int, scenarios: int | None) -> None:
    for seed in range(2000 + batch * BATCH // 2, 2000 + (batch + 1) * BATCH // 2):
        check(seed + (0 if scenarios else 500), (7, 7), scenarios=scenarios)


@pytest.mark.parametrize("batch", range(6))
def test_positions_find_the_best_on_scenarios(batch: int) -> None:
    for seed in range(3000 + batch * BATCH, 3000 + (batch + 1) * BATCH):
        problem, objective = problem_of(seed, (1, 4))
        drawn = draw_scenarios(problem, scenarios=4, seed=seed)
        compare(seed, problem, drawn, objective, solve_positions(problem, drawn, objective=objective))
