"""Errors that groups share add up along a queue, in all that prices, bounds or makes plans."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.planner_problems import live, medium
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.exact.scenarios import draw_scenarios
from qlm.planner.exact.solve import solve_exact, solve_on
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.problem_json import problem_from_plain, problem_to_plain
from qlm.planner.verify.monte_carlo import sample
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import NOTHING, Normal
from support.exact_planning import Shape, random_problem
from support.shared_errors import least_average_s, least_penalty_s, sharing

pytestmark = pytest.mark.timeout(2000)  # the first call compiles

COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=2.0)
TIME = GroupTime(
    service=Normal(10.0, 1.0), tail=Normal(4.0, 0.25), class_sd_s=2.0, speed_sd_s=1.0, tail_speed_sd_s=0.4
)


def queue(*groups: PlannedGroup) -> tuple[Problem, Plan]:
    kinds = {"k": Kind(host_memory_bytes=0, models={ModelId("m"): COST, ModelId("n"): COST})}
    instance = Instance(id=InstanceId("i"), kind="k", loaded_model=ModelId("m"), busy=NOTHING)
    problem = Problem(now_s=0.0, kinds=kinds, instances=(instance,), groups=groups)
    return problem, Plan(queues={instance.id: tuple(group.id for group in groups)})


def group(name: str, cls: str | None, *, model: str = "m", deadline_s: float = 60.0) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(name), model=ModelId(model), requests=20, deadline_s=deadline_s, time={"k": TIME}, cls=cls
    )


def small(seed: int) -> Problem:
    rng = random.Random(seed)
    shape = Shape(
        groups=rng.randint(3, 5),
        instances=rng.randint(1, 2),
        models=rng.randint(1, 2),
        load=rng.choice([0.8, 1.3]),
    )
    return sharing(random_problem(shape, rng), seed)


def test_standard_deviations_of_shared_errors_add_up_and_own_variances_do() -> None:
    problem, plan = queue(group("a", "c"), group("b", "d"), group("e", "c"), group("f", "c"))
    rows = verify(problem, plan).rows
    # Own 1 each; class c 2 each, class d 2; speed 1 each, and 0.4 of the tail.
    assert rows[3].start.var == pytest.approx(3 * 1.0 + 4.0**2 + 2.0**2 + 3.0**2)
    assert rows[3].completion.var == pytest.approx(4 * 1.0 + 0.25 + 6.0**2 + 2.0**2 + 4.4**2)


def test_a_group_without_a_class_has_an_error_of_its_own() -> None:
    problem, plan = queue(group("a", None), group("b", None))
    assert verify(problem, plan).rows[1].start.var == pytest.approx(1.0 + 2.0**2 + 1.0**2)
    assert verify(problem, plan).rows[1].completion.var == pytest.approx(2 * 5.0 + 0.25 + 2.4**2)


def test_a_tail_before_a_swap_shares_the_speed() -> None:
    problem, plan = queue(group("a", "c"), group("b", "c", model="n"))
    assert verify(problem, plan).rows[1].start.var == pytest.approx(1.0 + 0.25 + 2.0**2 + 1.4**2)


@pytest.mark.parametrize("seed", range(6))
def test_samples_agree_with_the_closed_form(seed: int) -> None:
    problem = sharing(medium(seed, 20), seed)
    plan = plan_edf(problem)
    report = verify(problem, plan)
    drawn = sample(problem, plan, generator=np.random.default_rng(seed), samples=4000)
    assert abs(drawn.penalty_s - report.penalty_s) <= 5 * drawn.penalty_se_s + 1e-3 * report.penalty_s
    assert abs(drawn.expected_attainment - report.expected_attainment) <= 5 * drawn.attainment_se + 1e-3


@pytest.mark.parametrize("batch", range(4))
def test_exact_plans_are_the_best_and_no_bound_is_above_them(batch: int) -> None:
    for seed in range(8 * batch, 8 * batch + 8):
        problem = small(seed)
        best_s = least_penalty_s(problem)
        exact = solve_exact(problem, time_limit_s=None)
        assert exact.method == "exact", seed
        assert exact.penalty_s is None or exact.penalty_s == pytest.approx(best_s, rel=1e-6, abs=1e-6), seed
        assert verify(problem, exact).penalty_s == pytest.approx(best_s, rel=1e-6, abs=1e-6), seed
        assert lower_bound(problem) <= best_s * (1 + 1e-9) + 1e-9, seed
        fast = solve_fast(problem, budget=SearchBudget(moves=20_000))
        assert fast.penalty_s == pytest.approx(verify(problem, fast).penalty_s, rel=1e-6, abs=1e-3), seed
        assert best_s - 1e-6 <= (fast.penalty_s or 0.0) + 1e-3, seed
        assert (fast.penalty_s or 0.0) <= 1.05 * best_s + 30.0, seed


@pytest.mark.parametrize("batch", range(3))
def test_exact_plans_are_the_best_on_scenarios(batch: int) -> None:
    for seed in range(100 + 6 * batch, 106 + 6 * batch):
        problem = small(seed)
        drawn = draw_scenarios(problem, scenarios=8, seed=seed)
        answer = solve_on(problem, drawn, time_limit_s=None)
        best_s = least_average_s(problem, draw_scenarios(problem, scenarios=8, seed=seed))
        assert answer.penalty_s == pytest.approx(best_s, rel=1e-6, abs=1e-6), seed


@pytest.mark.parametrize("seed", range(8))
def test_bounds_of_larger_problems_hold_with_much_in_common(seed: int) -> None:
    problem = sharing(medium(seed, 20 + 20 * seed), seed, sd=1.0)
    plans = [plan_edf(problem), solve_fast(problem, budget=SearchBudget(moves=20_000))]
    assert lower_bound(problem) <= min(verify(problem, plan).penalty_s for plan in plans)


def test_a_fast_plan_costs_what_it_says_on_long_queues() -> None:
    problem = sharing(live(1, groups=300, instances=4), 1, classes=9)
    plan = solve_fast(problem, budget=SearchBudget(moves=30_000), in_order=True)
    assert verify(problem, plan).penalty_s == pytest.approx(plan.penalty_s, rel=1e-6)


def test_problems_keep_their_shared_errors_in_json_and_need_none() -> None:
    problem, _plan = queue(group("a", "c"), group("b", None))
    assert problem_from_plain(problem_to_plain(problem)) == problem
    plain = problem_to_plain(replace(problem, groups=tuple(_alone(each) for each in problem.groups)))
    assert set(plain["groups"][0]) == {"id", "model", "requests", "deadline_s", "priority", "time"}
    assert plain["groups"][0]["time"]["k"]["drain_s"] == {"mean": 10.0, "var": 1.0}


def _alone(each: PlannedGroup) -> PlannedGroup:
    return replace(each, cls=None, time={"k": GroupTime(service=TIME.service, tail=TIME.tail)})


def test_chances_of_a_long_queue_are_not_overconfident() -> None:
    """Sixteen groups of one class: with independent errors the last would be in time almost surely."""
    groups = [group(f"g{at:02d}", "c", deadline_s=185.0) for at in range(16)]
    problem, plan = queue(*groups)
    row = verify(problem, plan).rows[-1]
    sd_s = math.sqrt(16 * 1.0 + 0.25 + 32.0**2 + 16.4**2)
    assert row.completion.mean == pytest.approx(164.0)
    assert row.completion.var == pytest.approx(sd_s**2)
    assert row.p_last_late == pytest.approx(0.5 * math.erfc(21.0 / sd_s / math.sqrt(2)))
    assert row.p_last_late > 0.25
