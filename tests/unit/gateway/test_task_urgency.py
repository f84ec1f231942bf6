from hypothesis import given
from hypothesis import strategies as st

from qlm.gateway.core.tasks.urgency import call_urgency
from qlm.rct_estimator.normal import NOTHING, Normal


def test_a_call_is_due_when_what_follows_it_just_fits() -> None:
    urgency = call_urgency(60.0, own=Normal(2.0), later=Normal(25.0))
    assert (urgency.due_s, urgency.hopeless) == (35.0, False)


def test_the_last_call_is_due_with_its_task() -> None:
    assert call_urgency(60.0, own=Normal(2.0), later=NOTHING).due_s == 60.0


def test_a_task_that_cannot_be_in_time_keeps_its_own_deadline_and_yields() -> None:
    urgency = call_urgency(20.0, own=Normal(2.0), later=Normal(25.0))
    assert (urgency.due_s, urgency.hopeless) == (20.0, True)


def test_a_task_with_some_hope_left_does_not_yield() -> None:
    # It is late by the mean, but not if pauses and answers turn out short.
    urgency = call_urgency(20.0, own=Normal(2.0), later=Normal(25.0, 100.0))
    assert not urgency.hopeless
    assert 0 < urgency.due_s <= 20.0


times = st.builds(Normal, st.floats(0, 1e5), st.floats(0, 1e8))


@given(st.floats(0.001, 1e6), times, times)
def test_a_call_is_never_due_after_its_task_nor_before_it_arrives(
    left_s: float, own: Normal, later: Normal
) -> None:
    assert 0 < call_urgency(left_s, own, later).due_s <= left_s


@given(st.floats(0.001, 1e5), st.floats(0, 1e5), times, times)
def test_more_time_never_makes_a_call_more_urgent(
    left_s: float, more_s: float, own: Normal, later: Normal
) -> None:
    tight, loose = call_urgency(left_s, own, later), call_urgency(left_s + more_s, own, later)
    assert loose.hopeless <= tight.hopeless
    if not tight.hopeless:
        assert loose.due_s >= tight.due_s
