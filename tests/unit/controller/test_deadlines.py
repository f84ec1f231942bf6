"""How many of a group's waiting requests a plan is made for, and when the middle one is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.controller.core.deadlines import deadline_demand, demand_with_demotion
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.view import ClassView

S = 1_000_000_000
NOW_NS = 1_000 * S
CHAT = RequestClass(ModelId("m"), "ttft-10s", target_ms=10_000.0)


def group(cls: RequestClass, oldest_s: float, count: int = 10) -> tuple[Group, ClassView]:
    """A group whose first request came so long ago."""
    first_ns = NOW_NS - round(oldest_s * S)
    made = Group(id=GroupId("g"), cls=cls, seq=1, count=count, head_arrival_ns=first_ns)
    return made, ClassView(cls=cls, queued=count, groups=(made,))


def ago(seconds: float) -> int:
    return NOW_NS - round(seconds * S)


def test_all_of_a_group_in_time_is_planned_for() -> None:
    assert demand_with_demotion(*group(CHAT, 8), ago(0), NOW_NS, service_s=2) == (10, 1000 - 4 + 10)


def test_what_cannot_be_in_time_is_left_out() -> None:
    """Of requests that came evenly over the last 18 s, those of the last 9 may start in time."""
    requests, deadline_s = demand_with_demotion(*group(CHAT, 18), ago(0), NOW_NS, service_s=2)
    assert requests == 5
    assert deadline_s == pytest.approx(1000 - 4.5 + 10)


def test_a_group_without_hope_is_late_work() -> None:
    assert demand_with_demotion(*group(CHAT, 40), ago(20), NOW_NS, service_s=2) == (10, None)
    assert demand_with_demotion(*group(CHAT, 9.5), ago(9.2), NOW_NS, service_s=2) == (10, None), (
        "nobody makes it"
    )


def test_late_work_is_planned_for_as_batch_work() -> None:
    assert demand_with_demotion(*group(CHAT.missed(), 40), ago(20), NOW_NS, 2) == (10, None)


def test_where_nobody_is_demoted_a_late_group_is_not_given_up() -> None:
    assert deadline_demand(*group(CHAT, 40), ago(20), NOW_NS) == (10, 1000 + 5)
    assert deadline_demand(*group(CHAT, 4), ago(0), NOW_NS) == (10, 1000 - 2 + 10)


def test_batch_is_never_due() -> None:
    batch = RequestClass(ModelId("m"), "batch")
    assert demand_with_demotion(*group(batch, 40), ago(20), NOW_NS, 2) == (10, None)


@given(st.floats(0, 60), st.floats(0, 60), st.floats(0, 30), st.integers(1, 50))
def test_some_requests_are_always_planned_for(
    one_s: float, other_s: float, takes_s: float, count: int
) -> None:
    first_s, last_s = max(one_s, other_s), min(one_s, other_s)
    requests, deadline_s = demand_with_demotion(*group(CHAT, first_s, count), ago(last_s), NOW_NS, takes_s)
    assert 1 <= requests <= count
    if deadline_s is None:
        assert requests == count, "all of it is late work"
        return
    assert 1000 - first_s + 10 - 1e-6 <= deadline_s <= 1000 - last_s + 10 + 1e-6
