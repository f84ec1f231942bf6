"""Promises: a share of a group's requests that plans keep in time, for a price or before anything else."""

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.planner_problems import medium
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.exact.scenarios import draw_scenarios
from qlm.planner.exact.solve import solve_exact, solve_on
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import PROMISE_S, GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.planner.problem_json import problem_from_plain, problem_to_plain
from qlm.planner.verify.monte_carlo import sample
from qlm.planner.verify.referee import Report, keeps_promise, verify
from qlm.rct_estimator.normal import Normal
from support.exact_planning import Shape, random_problem
from support.shared_errors import least_average_s, least_penalty_s, sharing

pytestmark = pytest.mark.timeout(2000)  # the first call compiles

FEW = SearchBudget(moves=20_000)
PRICES = tuple(PROMISE_S.values())


def overloaded(promise_s: float) -> Problem:
    """One instance, 20 s of work due in 10 s: a large group, and a small one with a promise."""
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    sizes = {"large": (40, None), "small": (10, 0.9)}
    groups = tuple(
        PlannedGroup(
            id=GroupId(name),
            model=ModelId("m"),
            requests=requests,
            deadline_s=12.0,
            time={"k": GroupTime(service=Normal(10.0, 1.0), tail=Normal(1.0, 0.01))},
            p_met=p_met,
        )
        for name, (requests, p_met) in sizes.items()
    )
    return Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=0, models={ModelId("m"): cost})},
        instances=(Instance(id=InstanceId("i"), kind="k", loaded_model=ModelId("m")),),
        groups=groups,
        promise_s=promise_s,
    )


def judged(problem: Problem, method: str) -> Report:
    plan = solve_fast(problem, budget=FEW) if method == "fast" else solve_exact(problem, time_limit_s=None)
    return verify(problem, plan)


@pytest.mark.parametrize("method", ["fast", "exact"])
def test_without_a_price_the_promised_group_is_given_up_and_with_one_it_is_not(method: str) -> None:
    kept = {
        name: [row.group for row in judged(overloaded(price_s), method).rows if row.p_met > 0.5]
        for name, price_s in PROMISE_S.items()
    }
    assert kept == {"plain": ["large"], "priced": ["small"], "hard": ["small"]}


def test_the_price_is_for_expected_misses_beyond_the_allowed_ones() -> None:
    problem = overloaded(6000.0)
    report = verify(problem, solve_fast(replace(problem, promise_s=0.0), budget=FEW))
    (row,) = (each for each in report.rows if each.promised is not None)
    assert row.short_requests == pytest.approx(row.late_requests - 1.0)
    assert not keeps_promise(row)
    assert report.promise_s == pytest.approx(6000.0 * row.short_requests)
    assert report.penalty_s == pytest.approx(sum(each.penalty_s for each in report.rows))
    assert verify(replace(problem, promise_s=0.0), solve_fast(problem, budget=FEW)).promise_s == 0.0


def promising(seed: int, price_s: float) -> Problem:
    rng = random.Random(seed)
    shape = Shape(
        groups=rng.randint(3, 5), instances=rng.randint(1, 2), models=2, load=rng.choice([0.9, 1.5])
    )
    problem = random_problem(shape, rng)
    problem = sharing(problem, seed) if seed % 2 else problem
    groups = (replace(each, p_met=rng.choice([None, 0.5, 0.9, 1.0])) for each in problem.groups)
    return replace(problem, groups=tuple(groups), promise_s=price_s)


@pytest.mark.parametrize("price_s", PRICES)
def test_exact_and_fast_plans_agree_and_no_bound_is_above_them(price_s: float) -> None:
    for seed in range(8):
        problem = promising(seed, price_s)
        best_s = least_penalty_s(problem)
        exact, fast = judged(problem, "exact"), judged(problem, "fast")
        assert exact.penalty_s == pytest.approx(best_s, rel=2e-6, abs=1e-6), seed
        assert best_s * (1 - 1e-6) - 1e-3 <= fast.penalty_s <= 1.05 * best_s + 30.0, seed
        assert lower_bound(problem) <= best_s * (1 + 1e-9) + 1e-9, seed


def test_exact_plans_on_scenarios_are_the_best_too() -> None:
    for seed in range(20, 26):
        problem = promising(seed, 6000.0)
        drawn = draw_scenarios(problem, scenarios=8, seed=seed)
        best_s = least_average_s(problem, drawn)
        assert solve_on(problem, drawn, time_limit_s=None).penalty_s == pytest.approx(best_s, rel=1e-6), seed


@pytest.mark.parametrize("method", ["fast", "exact"])
def test_promises_that_no_plan_keeps_are_broken_as_little_as_possible(method: str) -> None:
    problem = overloaded(PROMISE_S["hard"])
    both = replace(problem, groups=tuple(replace(each, p_met=0.9) for each in problem.groups))
    report = judged(both, method)
    assert not report.violations
    # Either group can be in time, not both: giving up the large one would be over 30 requests short.
    assert [row.group for row in report.rows if keeps_promise(row)] == ["large"]
    assert 0 < report.short_requests < 9.0


@pytest.mark.parametrize("seed", range(4))
def test_a_hard_promise_is_short_of_no_more_than_a_plain_plan(seed: int) -> None:
    problem = medium(seed, 40)
    promised = tuple(
        replace(each, p_met=0.9 if at % 3 == 0 else None) for at, each in enumerate(problem.groups)
    )
    short = []
    for price_s in PRICES:
        wanted = replace(problem, groups=promised, promise_s=price_s)
        plan = solve_fast(wanted, budget=SearchBudget(moves=60_000))
        report = verify(wanted, plan)
        assert report.penalty_s == pytest.approx(plan.penalty_s, rel=1e-6, abs=1e-3)
        assert lower_bound(wanted) <= report.penalty_s
        short.append(report.short_requests)
    assert short[2] <= short[0] + 1e-6
    assert short[1] <= short[0] + 1e-6


def test_promises_that_no_plan_keeps_do_not_keep_a_replan_from_improving_the_rest() -> None:
    problem = overloaded(PROMISE_S["hard"])
    never = replace(problem.groups[1], id=GroupId("never"), deadline_s=-5.0, p_met=1.0)
    groups = (*problem.groups, replace(problem.groups[0], id=GroupId("other")), never)
    (instance,) = problem.instances
    bad = replace(instance, queue=tuple(GroupId(id) for id in ("never", "other", "large", "small")))
    wanted = replace(problem, groups=groups, instances=(bad,))
    plan = solve_fast(wanted, budget=FEW)
    assert [row.group for row in verify(wanted, plan).rows if row.p_met > 0.5] == ["small"]


def test_samples_agree_with_the_closed_form() -> None:
    problem = overloaded(6000.0)
    plan = solve_fast(replace(problem, promise_s=0.0), budget=FEW)
    report = verify(problem, plan)
    drawn = sample(problem, plan, generator=np.random.default_rng(1), samples=4000)
    assert drawn.penalty_s == pytest.approx(report.penalty_s, rel=0.02)


def test_promises_survive_json_and_are_left_out_where_there_are_none() -> None:
    problem = overloaded(6000.0)
    assert problem_from_plain(problem_to_plain(problem)) == problem
    plain = problem_to_plain(replace(problem, promise_s=0.0))
    assert "promise_s" not in plain
    assert [each.get("p_met") for each in plain["groups"]] == [None, 0.9]
    assert "p_met" not in plain["groups"][0]
