"""The published form of plans."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.planner.plan_json import plan_from_plain, plan_to_plain
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import judged
from support.plans import random_plan, random_problem

PROBLEM: Problem = random_problem(1, groups=3)
PLAN: dict[str, Any] = {
    "version": 1,
    "queues": {"i0": ["g1", "g0"], "i1": []},
    "penalty_s": 12.5,
    "lower_bound_s": 10.0,
    "expected_attainment": 0.75,
    "unplaceable": ["g2"],
    "method": "fast",
    "solve_s": 0.5,
    "scale_up": [{"kind": "fast", "count": 2}],
}


def test_a_plan_survives_the_way_through_json() -> None:
    plan = plan_from_plain(json.loads(json.dumps(PLAN)), PROBLEM)
    assert plan_to_plain(plan) == PLAN
    assert plan_from_plain(plan_to_plain(plan), PROBLEM) == plan


@given(st.integers(0, 10_000))
def test_any_plan_survives_the_way_through_json(seed: int) -> None:
    problem = random_problem(seed)
    plan = judged(problem, random_plan(problem, seed))
    assert plan_from_plain(json.loads(json.dumps(plan_to_plain(plan))), problem) == plan


def test_queues_are_enough() -> None:
    plan = plan_from_plain({"version": 1, "queues": {"i0": ["g1"]}}, PROBLEM)
    assert plan_to_plain(plan) == {
        "version": 1,
        "queues": {"i0": ["g1"]},
        "penalty_s": None,
        "lower_bound_s": None,
        "expected_attainment": None,
        "unplaceable": [],
        "method": "",
        "solve_s": None,
        "scale_up": [],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "plan.version is 2; expected 1"),
        ({"surprise": 1}, "plan is 'surprise'; expected no field of this name"),
        ({"queues": []}, "plan.queues is []; expected an object"),
        ({"queues": {"x": []}}, "plan.queues is 'x'; expected instances of the problem only"),
        ({"queues": {"i0": "g1"}}, "plan.queues.i0 is 'g1'; expected a list"),
        ({"queues": {"i0": ["g1", 3]}}, "plan.queues.i0[1] is 3; expected a non-empty string"),
        ({"queues": {"i0": ["g1", "g1"]}}, "plan.queues.i0[1] is 'g1'; expected each name once"),
        (
            {"queues": {"i0": ["g1"], "i1": ["g1"]}},
            "plan.queues.i1 is 'g1'; expected each group once; it is also in plan.queues.i0",
        ),
        (
            {"unplaceable": ["g0"]},
            "plan.unplaceable is 'g0'; expected each group once; it is also in plan.queues.i0",
        ),
        ({"queues": {"i0": ["x"]}}, "plan.queues.i0 is 'x'; expected groups of the problem only"),
        ({"unplaceable": ["x"]}, "plan.unplaceable is 'x'; expected groups of the problem only"),
        ({"unplaceable": [[]]}, "plan.unplaceable[0] is []; expected a non-empty string"),
        ({"unplaceable": ["g2", "g2"]}, "plan.unplaceable[1] is 'g2'; expected each name once"),
        ({"penalty_s": math.nan}, "plan.penalty_s is nan; expected a finite number"),
        ({"penalty_s": True}, "plan.penalty_s is True; expected a number"),
        ({"lower_bound_s": math.inf}, "plan.lower_bound_s is inf; expected a finite number"),
        ({"expected_attainment": 1.5}, "plan.expected_attainment is 1.5; expected at most 1"),
        ({"expected_attainment": "all"}, "plan.expected_attainment is 'all'; expected a number"),
        ({"solve_s": -1}, "plan.solve_s is -1; expected at least 0"),
        ({"method": None}, "plan.method is None; expected a string"),
        ({"scale_up": {}}, "plan.scale_up is {}; expected a list"),
        ({"scale_up": ["fast"]}, "plan.scale_up[0] is 'fast'; expected an object"),
        ({"scale_up": [{"kind": "x", "count": 1}]}, "plan.scale_up[0].kind is 'x'; expected a kind of"),
        ({"scale_up": [{"kind": "fast", "count": 0}]}, "plan.scale_up[0].count is 0; expected at least 1"),
        ({"scale_up": [{"kind": "fast"}]}, "plan.scale_up[0].count is None; expected a value"),
        (
            {"scale_up": [{"kind": "fast", "count": 1, "why": 2}]},
            "plan.scale_up[0] is 'why'; expected no field of this name",
        ),
        (
            {"scale_up": [{"kind": "fast", "count": 1}] * 2},
            "plan.scale_up[1].kind is 'fast'; expected each kind once",
        ),
        ({"queues": {"i0": ["g"] * 20_001}}, "number of plan.queues.i0 is 20001; expected at most 20000"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        plan_from_plain(PLAN | change, PROBLEM)
    assert message in str(caught.value)


@pytest.mark.parametrize("missing", ["version", "queues"])
def test_a_missing_field_is_named(missing: str) -> None:
    plain = {key: value for key, value in PLAN.items() if key != missing}
    with pytest.raises(InvalidValueError, match=f"plan.{missing} is None; expected a value"):
        plan_from_plain(plain, PROBLEM)
