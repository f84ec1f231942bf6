"""One order of service for planner, controller and agents."""

from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.urgency import class_urgency, service_order, urgency
from qlm.planner.baselines.orders import by_urgency
from qlm.planner.policy.planned_queue import urgency_of
from qlm.planner.problem import PlannedGroup

PRIORITIES = st.integers(-10, 10)
DEADLINES = st.none() | st.integers(0, 10**15)


def test_priority_goes_before_deadline_and_deadline_before_arrival() -> None:
    keys = [
        service_order(-1, None, 9),
        service_order(0, 5, 9),
        service_order(0, 6, 1),
        service_order(0, None, 1),
        service_order(0, None, 2),
    ]
    assert keys == sorted(keys)


@given(PRIORITIES, DEADLINES, PRIORITIES, DEADLINES)
def test_requests_and_groups_are_ordered_alike(
    priority: int, deadline: int | None, other_priority: int, other_deadline: int | None
) -> None:
    mine, other = urgency(priority, deadline), urgency(other_priority, other_deadline)
    first, second = service_order(priority, deadline, 0), service_order(other_priority, other_deadline, 0)
    assert (mine < other) == (first < second)
    assert (mine > other) == (first > second)


def test_a_late_class_sorts_like_work_without_a_deadline() -> None:
    cls = RequestClass(model=ModelId("m"), slo="deadline-16s", target_ms=16_000.0)
    batch = RequestClass(model=ModelId("m"), slo="batch")
    assert class_urgency(cls) < class_urgency(cls.missed()) == class_urgency(batch)


def test_planned_groups_are_ordered_by_urgency_then_by_id() -> None:
    dated = PlannedGroup(id=GroupId("b"), model=ModelId("m"), requests=1, deadline_s=5.0)
    same = PlannedGroup(id=GroupId("a"), model=ModelId("m"), requests=1, deadline_s=5.0)
    batch = PlannedGroup(id=GroupId("c"), model=ModelId("m"), requests=1, deadline_s=None)
    assert sorted([batch, dated, same], key=by_urgency) == [same, dated, batch]
    assert urgency_of(dated) == urgency_of(same) < urgency_of(batch)
