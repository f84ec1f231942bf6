"""A plan with its problem, as it is kept: what is written can be read, and what is wrong is named."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.planner.published_plan import PublishedPlan, published_plan_from_plain, published_plan_to_plain
from support.plans import random_plan, random_problem


def a_plan(seed: int = 1, at_ms: int = 1_700_000_000_123) -> PublishedPlan:
    problem = random_problem(seed, groups=6, instances=3, priorities=2)
    return PublishedPlan(at_ms=at_ms, problem=problem, plan=random_plan(problem, seed))


@given(st.integers(0, 10_000), st.integers(0, 10**14))
def test_what_is_written_is_read(seed: int, at_ms: int) -> None:
    kept = a_plan(seed, at_ms)
    assert published_plan_from_plain(orjson.loads(orjson.dumps(published_plan_to_plain(kept)))) == kept


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "kept plan.version is 2; expected 1"),
        ({"at_ms": -1}, "kept plan.at_ms is -1; expected at least 0"),
        ({"at_ms": "soon"}, "kept plan.at_ms is 'soon'; expected a number"),
        ({"by": "me"}, "kept plan is 'by'; expected no field of this name"),
        ({"problem": []}, "problem is []; expected an object"),
        (
            {"plan": {"version": 1, "queues": {"x": []}}},
            "plan.queues is 'x'; expected instances of the problem only",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        published_plan_from_plain(published_plan_to_plain(a_plan()) | change)
    assert str(caught.value) == message
