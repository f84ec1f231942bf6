from dataclasses import replace

import pytest

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.policy.one_more import FleetForecast, one_more
from qlm.planner.policy.replanning import improved
from qlm.planner.policy.scale_up import enlarged
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.plans import random_problem

COST = ModelCost(weights_bytes=1, swap_warm_s=5.0, swap_cold_s=50.0)


def group(id: str, deadline_s: float | None, model: str = "m") -> PlannedGroup:
    """Ten requests that take 10 s, and a second of their own."""
    time = {"a": GroupTime(service=Normal(10.0), tail=Normal(1.0))}
    return PlannedGroup(id=GroupId(id), model=ModelId(model), requests=10, deadline_s=deadline_s, time=time)


def problem(*groups: PlannedGroup, move_s: float = 1.0) -> Problem:
    """One instance with the model m, and a kind without instances that runs nothing of what waits."""
    kinds = {
        "a": Kind(host_memory_bytes=10, models={ModelId("m"): COST}),
        "b": Kind(host_memory_bytes=10, models={ModelId("x"): COST}),
    }
    only = Instance(id=InstanceId("i"), kind="a", loaded_model=ModelId("m"))
    return Problem(now_s=0.0, kinds=kinds, instances=(only,), groups=groups, move_s=move_s)


def on_one(of: Problem) -> Plan:
    return Plan(queues={InstanceId("i"): tuple(each.id for each in of.groups if each.model == "m")})


def test_late_work_goes_to_the_added_instance() -> None:
    crowded = problem(group("g", 12.0), group("h", 17.0))
    now, more = one_more(crowded, on_one(crowded), ["a"], improved)
    # h starts at 10 s and its requests end 1 s apart from 12 s on: 17 s is met by the first six.
    assert now.late_requests == pytest.approx(4.0)
    assert now.expected_attainment == pytest.approx(0.8)
    assert now.penalty_s == pytest.approx(4 * 600.0 + 1 + 2 + 3 + 4)
    assert (now.kind, now.added_requests, now.moved_groups, now.swaps) == (None, 0, 0, 0)
    # The added one loads for 5 s: h ends at 16 s.
    assert more.kind == "a"
    assert [more.late_requests, more.penalty_s] == pytest.approx([0.0, 0.0])
    assert (more.added_requests, more.moved_groups, more.swaps) == (10, 1, 1)
    assert more.last_answer_s == pytest.approx(16.0)


def test_times_of_answers_are_means_over_requests() -> None:
    batch = problem(group("g", None), group("h", None))
    now, more = one_more(batch, on_one(batch), ["a"], improved)
    # Answers come each second, from 2 s to 21 s.
    assert now.mean_answer_s == pytest.approx(sum(range(2, 22)) / 20)
    assert now.last_answer_s == pytest.approx(21.0)
    assert more.mean_answer_s == pytest.approx((sum(range(2, 12)) + sum(range(7, 17))) / 20)
    assert (now.expected_attainment, now.late_requests) == (1.0, 0.0)


def test_an_instance_of_another_kind_changes_nothing() -> None:
    crowded = problem(group("g", 12.0), group("h", 17.0))
    now, more = one_more(crowded, on_one(crowded), ["b"], improved)
    assert replace(more, kind=None) == now


def test_requests_that_run_nowhere_are_late_until_their_instance_is_added() -> None:
    of = problem(group("g", 12.0), replace(group("x", 99.0, model="x"), time={"b": group("x", 0).time["a"]}))
    plan = replace(on_one(of), unplaceable=(GroupId("x"),))
    now, more = one_more(of, plan, ["b"], improved)
    assert [now.late_requests, now.unplaceable_requests] == pytest.approx([10.0, 10])
    assert [more.late_requests, more.unplaceable_requests] == pytest.approx([0.0, 0])
    assert (more.added_requests, more.expected_attainment) == (10, 1.0)


def test_a_fleet_without_work_has_no_times() -> None:
    (now,) = one_more(problem(), Plan(queues={}), [], improved)
    assert now == FleetForecast(
        kind=None,
        expected_attainment=1.0,
        late_requests=0.0,
        penalty_s=0.0,
        mean_answer_s=None,
        last_answer_s=None,
        unplaceable_requests=0,
        moved_groups=0,
        added_requests=0,
        swaps=0,
    )


def test_a_plan_that_cannot_be_served_is_only_a_start() -> None:
    crowded = problem(group("g", 12.0), group("h", 30.0))
    wrong = Plan(queues={InstanceId("i"): (GroupId("g"),)})
    assert verify(crowded, wrong).violations
    (now,) = one_more(crowded, wrong, [], improved)
    assert now.unplaceable_requests == 0


@pytest.mark.parametrize("seed", range(12))
def test_no_fleet_is_worse_than_the_present_plan(seed: int) -> None:
    of = random_problem(seed, groups=12, instances=3, load=2.0, priorities=2)
    plan = plan_edf(of)
    report = verify(of, plan)
    now, *more = one_more(of, plan, sorted(of.kinds), improved)
    assert [each.kind for each in more] == sorted(of.kinds)
    for each in (now, *more):
        assert each.penalty_s <= report.penalty_s - report.move_s + 1e-3


def test_a_worse_method_leaves_the_added_instance_idle() -> None:
    crowded = problem(group("g", 12.0), group("h", 17.0))

    def reversed_order(of: Problem) -> Plan:
        return Plan(queues={of.instances[0].id: (GroupId("h"), GroupId("g"))})

    now, more = one_more(crowded, on_one(crowded), ["a"], reversed_order)
    assert replace(more, kind=None) == now
    assert len(enlarged(crowded, {"a": 1}).instances) == 2


def test_no_larger_fleet_is_worse_than_the_present_one() -> None:
    crowded = problem(group("g", 12.0), group("h", 17.0), group("late", 1.0))
    late_first = Plan(queues={InstanceId("i"): (GroupId("late"), GroupId("h"), GroupId("g"))})

    def good_for_few(of: Problem) -> Plan:
        ids = (GroupId("g"), GroupId("h"), GroupId("late"))
        return Plan(queues={of.instances[0].id: ids if len(of.instances) == 1 else ids[::-1]})

    now, more = one_more(crowded, late_first, ["a"], good_for_few)
    assert replace(more, kind=None) == now
