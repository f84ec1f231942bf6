"""The controller's re-planning policy."""

from dataclasses import replace

import pytest

from benchmarks.planner_problems import live
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.method_names import KEPT
from qlm.planner.policy.replanning import Replanner, ReplanSettings
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import verify

PROBLEM = live(4, groups=60, instances=6)


def queued(problem: Problem, plan: Plan, *, passed_s: float = 0.0) -> Problem:
    """The problem a moment later, with the plan as its queues."""
    instances = tuple(replace(each, queue=plan.queues[each.id]) for each in problem.instances)
    return replace(problem, now_s=problem.now_s + passed_s, instances=instances)


def test_the_first_plan_is_a_whole_one() -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    assert planner.moves > 0
    assert not verify(PROBLEM, plan).violations


def test_nothing_new_and_not_time_yet_costs_nothing() -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    again = planner(queued(PROBLEM, plan, passed_s=0.1))
    assert planner.moves == 0
    assert again.queues == plan.queues


def test_without_groups_the_present_plan_is_kept_and_no_search_begins() -> None:
    planner = Replanner(seed=1)
    nothing = replace(PROBLEM, groups=(), instances=tuple(replace(i, queue=()) for i in PROBLEM.instances))
    plan = planner(nothing)
    assert (plan.method, plan.penalty_s, planner.moves) == (KEPT, 0.0, 0)
    assert not any(plan.queues.values()) and len(plan.queues) == len(PROBLEM.instances)
    assert not verify(nothing, plan).violations
    planner(replace(PROBLEM, now_s=PROBLEM.now_s + 0.3))
    assert planner.moves > 0, "the penalty has grown"


def test_a_new_group_is_inserted_and_the_rest_stays_in_its_order() -> None:
    planner = Replanner(ReplanSettings(every_s=10.0, urgent_s=10.0), seed=1)
    plan = planner(PROBLEM)
    new = replace(PROBLEM.groups[0], id=GroupId("new"))
    later = queued(replace(PROBLEM, groups=(*PROBLEM.groups, new)), plan, passed_s=0.1)
    inserted = planner(later)
    assert planner.moves == 0
    assert not [found for found in verify(later, inserted).violations if found.constraint != "penalty_s"]
    assert {id: tuple(g for g in queue if g != "new") for id, queue in inserted.queues.items()} == plan.queues


def test_a_group_whose_first_request_has_just_come_may_go_anywhere_at_no_price() -> None:
    planner = Replanner(ReplanSettings(every_s=10.0, urgent_s=10.0), seed=1)
    known = replace(PROBLEM, groups=PROBLEM.groups[1:], move_s=1e9)
    plan = planner(known)
    late = PROBLEM.groups[0]
    at = next(iter(plan.queues))
    stood = replace(plan, queues={**plan.queues, at: (*plan.queues[at], late.id)})
    later = queued(replace(PROBLEM, move_s=1e9), stood, passed_s=0.1)
    inserted = planner(later)
    fresh = planner(queued(replace(PROBLEM, move_s=1e9), plan, passed_s=0.1))
    assert inserted.queues == fresh.queues


@pytest.mark.parametrize("change", ["time", "fleet", "clock"])
def test_it_is_improved_in_time_or_when_the_fleet_changes(change: str) -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    later = queued(PROBLEM, plan, passed_s={"time": 1.0, "fleet": 0.3, "clock": -5.0}[change])
    if change == "fleet":
        gone = later.instances[0]
        later = replace(later, instances=later.instances[1:])
        improved = planner(later)
        assert gone.id not in improved.queues
    else:
        improved = planner(later)
    assert planner.moves > 0
    assert not verify(later, improved).violations


def test_a_change_of_the_fleet_is_not_forgotten_and_its_order_does_not_matter() -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    more = replace(PROBLEM.instances[0], id=InstanceId("new"), queue=())
    grown = replace(PROBLEM, instances=(*PROBLEM.instances, more))
    stood = replace(plan, queues={**plan.queues, more.id: ()})
    planner(queued(grown, stood, passed_s=0.1))
    assert planner.moves == 0, "not so soon"
    planner(queued(grown, stood, passed_s=0.25))
    assert planner.moves > 0
    turned = replace(grown, instances=tuple(reversed(grown.instances)))
    planner(queued(turned, stood, passed_s=0.5))
    assert planner.moves == 0


def test_a_group_that_can_run_nowhere_any_more_is_listed() -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    model = PROBLEM.groups[0].model
    kinds = {
        name: replace(kind, models={m: cost for m, cost in kind.models.items() if m != model})
        for name, kind in PROBLEM.kinds.items()
    }
    lost = queued(replace(PROBLEM, kinds=kinds), plan, passed_s=0.1)
    assert not verify(lost, planner(lost)).violations


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidValueError, match="urgent_s"):
        ReplanSettings(every_s=0.1, urgent_s=0.2)
    with pytest.raises(InvalidValueError, match="moves_per_group"):
        ReplanSettings(moves_per_group=-1)


def test_a_plan_whose_improvement_takes_long_is_improved_less_often() -> None:
    planner = Replanner(ReplanSettings(share_max=1e-4, moves_per_group=2000), seed=1)
    plan = planner(PROBLEM)
    again = planner(queued(PROBLEM, plan, passed_s=1.0))
    assert planner.moves == 0, "moves of 100 ms take a ten thousandth of minutes"
    assert again.queues == plan.queues
    planner(queued(PROBLEM, plan, passed_s=1e4))
    assert planner.moves > 0


def test_a_small_plan_is_improved_every_second() -> None:
    planner = Replanner(seed=1)
    plan = planner(PROBLEM)
    planner(queued(PROBLEM, plan, passed_s=1.0))
    assert planner.moves > 0


@pytest.mark.parametrize("share_max", [0.0, 1.5])
def test_a_share_of_the_time_is_above_0_and_at_most_1(share_max: float) -> None:
    with pytest.raises(InvalidValueError, match="share_max"):
        ReplanSettings(share_max=share_max)
