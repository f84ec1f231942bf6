"""Costs of other places of a group, against plans that have it there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.explain import explain
from qlm.planner.verify.referee import verify
from support.plans import random_plan, random_problem

SEEDS = st.integers(0, 10_000)
OBJECTIVES: tuple[Objective, ...] = ("requests", "paper")


def put(plan: Plan, group: GroupId, instance: InstanceId, at: int) -> Plan:
    queues = {id: [each for each in queue if each != group] for id, queue in plan.queues.items()}
    queues[instance].insert(at, group)
    return replace(plan, queues={id: tuple(queue) for id, queue in queues.items()})


def keeps_priorities(problem: Problem, plan: Plan) -> bool:
    return not any(each.constraint == "priority_order" for each in verify(problem, plan).violations)


@given(SEEDS, st.sampled_from(OBJECTIVES))
def test_each_place_costs_what_the_plan_with_it_costs(seed: int, objective: Objective) -> None:
    problem = random_problem(seed, groups=6, instances=3, priorities=2)
    plan = random_plan(problem, seed)
    before = verify(problem, plan, objective=objective)
    for group in (problem.groups[0].id, problem.groups[-1].id):
        explained = explain(problem, plan, group, objective=objective)
        places = [*explained.elsewhere, *([explained.first] if explained.first else [])]
        for place in places:
            changed = put(plan, group, place.row.instance, place.row.place)
            after = verify(problem, changed, objective=objective)
            assert place.change_s == pytest.approx(after.penalty_s - before.penalty_s, abs=1e-6)
            assert place.row == next(row for row in after.rows if row.group == group)
            assert place.allowed == keeps_priorities(problem, changed)


@given(SEEDS)
def test_no_other_place_of_an_instance_is_better_than_the_reported_one(seed: int) -> None:
    problem = random_problem(seed, groups=6, instances=2, models=1)
    plan = random_plan(problem, seed)
    before = verify(problem, plan).penalty_s
    (place,) = explain(problem, plan, GroupId("g0")).elsewhere
    to = place.row.instance
    changes = [
        verify(problem, put(plan, GroupId("g0"), to, at)).penalty_s - before
        for at in range(len(plan.queues[to]) + 1)
    ]
    assert place.change_s == pytest.approx(min(changes), abs=1e-6)


@given(SEEDS)
def test_the_steps_are_what_the_plan_does_up_to_the_group(seed: int) -> None:
    problem = random_problem(seed, groups=6, instances=2)
    plan = random_plan(problem, seed)
    for row in verify(problem, plan).rows:
        explained = explain(problem, plan, row.group)
        steps = [step.row for step in explained.steps]
        assert [each.group for each in steps] == list(plan.queues[row.instance][: row.place + 1])
        assert steps[-1] == row
        assert explained.busy is not None
        clock_s = explained.busy.mean
        for step in explained.steps:
            clock_s += step.waits_for_tail.mean + step.row.swap_s
            assert step.row.start.mean == pytest.approx(clock_s)
            clock_s += step.service.mean


def test_a_group_that_runs_nowhere_says_why() -> None:
    problem = random_problem(1)
    strange = replace(problem.groups[0], model=ModelId("elsewhere"))
    problem = replace(problem, groups=(strange, *problem.groups[1:]))
    explained = explain(problem, random_plan(problem, 1), strange.id)
    assert explained.why_unplaceable == "elsewhere runs on no instance"
    assert (explained.steps, explained.first, explained.elsewhere) == ((), None, ())


def test_a_group_without_a_place_has_its_possible_places() -> None:
    problem = random_problem(1, models=1)
    explained = explain(problem, Plan(queues={}), GroupId("g0"))
    assert (explained.steps, explained.first, explained.busy, explained.why_unplaceable) == (
        (),
        None,
        None,
        None,
    )
    assert {place.row.instance for place in explained.elsewhere} == {"i0", "i1"}


def test_an_unknown_group_is_an_error() -> None:
    with pytest.raises(InvalidValueError, match="group is 'x'; expected a group of the problem"):
        explain(random_problem(1), Plan(queues={}), GroupId("x"))
