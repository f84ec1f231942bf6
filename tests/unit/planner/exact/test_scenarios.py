"""Sampled futures, and the plain objective on them."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.exact.objective import chances, sample_average
from qlm.planner.exact.scenarios import draw_scenarios
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.exact_planning import Shape, best_value, random_problem

A, B = ModelId("a"), ModelId("b")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=10.0, unload_s=1.0)


def group(name: str, model: ModelId, deadline_s: float | None, var: float = 0.0) -> PlannedGroup:
    time = GroupTime(service=Normal(10.0, var), tail=Normal(3.0, var))
    return PlannedGroup(id=GroupId(name), model=model, requests=2, deadline_s=deadline_s, time={"gpu": time})


def problem(*groups: PlannedGroup, instances: int = 1) -> Problem:
    fleet = tuple(
        Instance(id=InstanceId(f"i{i}"), kind="gpu", loaded_model=A, busy=Normal(5.0))
        for i in range(instances)
    )
    kinds = {"gpu": Kind(host_memory_bytes=100, models={A: COST, B: COST})}
    return Problem(now_s=100.0, kinds=kinds, instances=fleet, groups=groups, miss_weight_s=50.0, move_s=7.0)


def plan(*queue: str) -> Plan:
    return Plan(queues={InstanceId("i0"): tuple(map(GroupId, queue))})


def test_the_objective_of_a_queue_worked_out_by_hand() -> None:
    # a: starts at 5, ends at 13 and 18. b: 5 + 10 + tail 3 + unload 1 + cold 10 = 29, ends at 37 and 42.
    # c: back to a, warm: 29 + 10 + 3 + 1 + 2 = 45, ends at 53 and 58.
    p = problem(group("a", A, 115.0), group("b", B, 139.0), group("c", A, None))
    drawn = draw_scenarios(p, scenarios=5, seed=0)
    assert drawn.count == 1
    assert sample_average(p, plan("a", "b", "c"), drawn) == pytest.approx((3 + 50) + (3 + 50))
    assert sample_average(p, plan("a", "b", "c"), drawn, objective="paper") == pytest.approx(3 + 3)
    late = problem(group("a", A, None), group("b", B, None), group("c", A, 150.0))
    assert sample_average(late, plan("a", "b", "c"), drawn) == pytest.approx((3 + 50) + (8 + 50))


def test_a_moved_group_costs_its_price() -> None:
    p = problem(group("a", A, None), instances=2)
    p = replace(p, instances=(p.instances[0], replace(p.instances[1], queue=(GroupId("a"),))))
    assert sample_average(p, plan("a"), draw_scenarios(p, scenarios=1, seed=0)) == 7.0


def test_a_completion_at_its_deadline_is_met_whatever_the_order_of_sums() -> None:
    p = problem(group("a", A, 100.0 + 0.1 + 0.2 + 17.7))
    assert sample_average(p, plan("a"), draw_scenarios(p, scenarios=1, seed=0)) == 0.0


def test_draws_have_mean_0_and_variance_1_and_depend_on_the_seed_alone() -> None:
    p = problem(group("a", A, 115.0, var=4.0), group("b", B, 139.0, var=4.0))
    drawn = draw_scenarios(p, scenarios=20, seed=3)
    for draws in (drawn.busy, *drawn.service.values(), *drawn.tail.values()):
        assert draws.mean() == pytest.approx(0.0, abs=1e-12)
        assert draws.var() == pytest.approx(1.0)
    again = draw_scenarios(replace(p, groups=p.groups[::-1]), scenarios=20, seed=3)
    other = draw_scenarios(p, scenarios=20, seed=4)
    assert all(np.array_equal(drawn.service[g.id], again.service[g.id]) for g in p.groups)
    assert not np.array_equal(drawn.busy, other.busy)


def test_groups_alike_in_time_are_exchangeable_in_each_sample() -> None:
    p = problem(*(group(name, A, 130.0, var=9.0) for name in "abc"))
    drawn = draw_scenarios(p, scenarios=10, seed=0)
    values = {round(sample_average(p, plan(*o), drawn), 9) for o in itertools.permutations("abc")}
    assert len(values) == 1


def test_the_sample_average_tends_to_the_expectation() -> None:
    p = problem(group("a", A, 118.0, var=9.0), group("b", B, 140.0, var=16.0))
    exact_s = verify(p, plan("a", "b")).penalty_s
    sampled_s = sample_average(p, plan("a", "b"), draw_scenarios(p, scenarios=SCENARIOS_MAX, seed=0))
    assert sampled_s == pytest.approx(exact_s, rel=0.02)


def test_chances_are_shares_of_scenarios() -> None:
    p = problem(group("a", A, 118.0, var=9.0), group("b", B, None, var=9.0))
    drawn = draw_scenarios(p, scenarios=1000, seed=0)
    row = next(row for row in verify(p, plan("a", "b")).rows if row.group == "a")
    assert chances(p, plan("a", "b"), drawn)[GroupId("a")] == pytest.approx(1 - row.p_last_late, abs=0.03)
    assert chances(p, plan("a", "b"), drawn)[GroupId("b")] == 1.0


@pytest.mark.parametrize("seed", range(8))
def test_enumerated_orders_and_whole_plans_agree(seed: int) -> None:
    """The reference of the exact solver prices queues by itself; here whole plans are priced instead."""
    p = random_problem(Shape(groups=3, instances=2, models=2), random.Random(seed))
    drawn = draw_scenarios(p, scenarios=4, seed=seed)
    values = [sample_average(p, each, drawn) for each in _all_plans(p) if not verify(p, each).violations]
    assert min(values) == pytest.approx(best_value(p, drawn), abs=1e-6)


def _all_plans(p: Problem) -> list[Plan]:
    """All orders of all groups that run somewhere, dealt out to instances in all ways."""
    able = [g for g in p.groups if any(_runs(p, i, g) for i in p.instances)]
    missing = tuple(sorted(g.id for g in p.groups if g not in able))
    plans = []
    for order in itertools.permutations(able):
        for on in itertools.product(p.instances, repeat=len(able)):
            dealt = list(zip(order, on, strict=True))
            queues = {i.id: tuple(g.id for g, at in dealt if at is i) for i in p.instances}
            if all(_runs(p, at, g) for g, at in dealt):
                plans.append(Plan(queues=queues, unplaceable=missing))
    return plans


def _runs(p: Problem, instance: Instance, group: PlannedGroup) -> bool:
    return instance.kind in group.time and group.model in p.kinds[instance.kind].models


@pytest.mark.parametrize("scenarios", [0, -1, SCENARIOS_MAX + 1])
def test_the_number_of_scenarios_is_limited(scenarios: int) -> None:
    with pytest.raises(InvalidValueError, match="scenarios"):
        draw_scenarios(problem(), scenarios=scenarios, seed=0)


def test_plans_of_other_problems_are_refused() -> None:
    p = problem(group("a", A, None))
    drawn = draw_scenarios(p, scenarios=1, seed=0)
    with pytest.raises(InvalidValueError, match="a group of the problem"):
        sample_average(p, plan("z"), drawn)
    with pytest.raises(InvalidValueError, match="an instance of the problem"):
        sample_average(p, Plan(queues={InstanceId("z"): ()}), drawn)
    alien = replace(p, kinds={"gpu": Kind(host_memory_bytes=100, models={B: COST})})
    with pytest.raises(InvalidValueError, match="runs here"):
        sample_average(alien, plan("a"), drawn)
