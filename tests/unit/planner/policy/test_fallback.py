"""A planner that fails costs one plan: that one is made by earliest deadline first, and says why."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.planner_problems import live
from qlm.domain.errors import InvalidValueError
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.policy.fallback import FailureKind, plan_or_fall_back
from qlm.planner.problem import Plan, Problem

PROBLEM = live(4, groups=30, instances=3)


def raising(problem: Problem) -> Plan:
    raise InvalidValueError("models", 64, "at most 63")


def crashing(problem: Problem) -> Plan:
    raise ZeroDivisionError


def changed(change: Callable[[Plan], Plan]) -> Callable[[Problem], Plan]:
    return lambda problem: change(plan_edf(problem))


def without_one(plan: Plan) -> Plan:
    longest = max(plan.queues, key=lambda id: len(plan.queues[id]))
    return replace(plan, queues={**plan.queues, longest: plan.queues[longest][1:]})


def twice(plan: Plan) -> Plan:
    first, other = sorted(plan.queues)[:2]
    return replace(
        plan, queues={**plan.queues, other: (*plan.queues[other], *plan.queues[first])}, method="twice"
    )


@pytest.mark.parametrize(
    ("planner", "kind", "text"),
    [
        (raising, FailureKind.RAISED, "models is 64; expected at most 63"),
        (crashing, FailureKind.RAISED, "ZeroDivisionError"),
        (changed(lambda plan: replace(plan, penalty_s=math.nan)), FailureKind.NOT_FINITE, "nan"),
        (changed(lambda plan: replace(plan, penalty_s=math.inf)), FailureKind.NOT_FINITE, "inf"),
        (changed(without_one), FailureKind.INVALID, "is placed nowhere"),
        (changed(twice), FailureKind.INVALID, "is placed 2 times"),
    ],
)
def test_what_cannot_be_used_is_planned_by_earliest_deadline_first(
    planner: Callable[[Problem], Plan], kind: FailureKind, text: str
) -> None:
    plan, failure = plan_or_fall_back(planner, PROBLEM)
    assert plan.queues == plan_edf(PROBLEM).queues
    assert failure is not None and failure.kind is kind
    assert plan.method.startswith(f"edf, since the planner failed ({kind}: ") and text in plan.method


def test_a_long_error_is_cut_in_the_method() -> None:
    def planner(problem: Problem) -> Plan:
        raise ValueError("x" * 10_000)

    plan, _failure = plan_or_fall_back(planner, PROBLEM)
    assert len(plan.method) < 300


def test_a_planner_that_ignores_priorities_does_not_fail_by_it() -> None:
    groups = tuple(replace(group, priority=at % 3) for at, group in enumerate(PROBLEM.groups))
    problem = replace(PROBLEM, groups=groups)
    assert plan_or_fall_back(plan_fcfs, problem) == (plan_fcfs(problem), None)
