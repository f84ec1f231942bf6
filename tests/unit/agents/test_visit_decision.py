"""Decisions about a visit: who loses what, the latest moment to leave, and for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.scheduling.visits.backlog import NO_BACKLOG, Backlog, HopefulRequests
from qlm.agents.core.scheduling.visits.decision import (
    DECIDE_WITHIN_S,
    LEAST_VISIT_SWAPS,
    MARGIN_S,
    NEVER,
    Candidate,
    Leave,
    Present,
    Remain,
    decide,
)
from qlm.domain.ids import ModelId

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def requests(
    count: int, first_s: float, last_s: float, *, service_s: float = 0.1, objective_s: float = 30.0
) -> Backlog:
    part = HopefulRequests.of(
        priority=0,
        requests=count,
        first_s=first_s,
        last_s=last_s,
        service_s=service_s,
        objective_s=objective_s,
    )
    return Backlog([] if part is None else [part])


def other(
    model: ModelId,
    backlog: Backlog,
    *,
    swap_s: float = 1.0,
    arrivals_rps: float = 0.0,
    waiting: int | None = None,
    priority: int = 0,
) -> Candidate:
    hopeful = round(sum(part.requests for part in backlog.parts))
    return Candidate(
        model=model,
        backlog=backlog,
        swap_s=swap_s,
        arrivals_rps=arrivals_rps,
        waiting=hopeful if waiting is None else waiting,
        priority=priority,
    )


def present(**values: object) -> Present:
    return Present(**{"backlog": NO_BACKLOG, "back_s": 1.0, "awake_s": 100.0, **values})  # type: ignore[arg-type]


@given(st.integers(1, 40), st.floats(0, 20), st.floats(0, 20), st.floats(0.01, 3), st.floats(0, 60))
def test_the_lost_are_those_whose_turn_comes_after_their_latest_start(
    count: int, first_s: float, spread_s: float, service_s: float, begin_s: float
) -> None:
    one_by_one = sum(
        begin_s + r * service_s > first_s + spread_s * (r / (count - 1) if count > 1 else 0)
        for r in range(count)
    )
    backlog = requests(count, first_s, first_s + spread_s, service_s=service_s)
    assert backlog.lost(begin_s) == pytest.approx(one_by_one, abs=1.01)


def test_requests_that_are_lost_already_count_no_more() -> None:
    assert not requests(5, -10.0, -1.0)
    half = requests(10, -10.0, 10.0)
    assert half.parts[0].requests == pytest.approx(5.0)
    assert half.first_s == 0.0


def test_without_other_models_the_visit_has_no_end() -> None:
    assert decide(present(), []) is NEVER
    assert NEVER.begins(answer_s=1e6, latest_start_s=float("inf"))


def test_the_latest_moment_of_three_models_by_hand() -> None:
    """C must begin by 40, so B, which takes 2 + 10 s, must be left for by 40 - 2 - 3 - 12 = 23."""
    b = other(B, requests(100, 60.0, 90.0), swap_s=2.0)
    c = other(C, requests(10, 40.0, 50.0), swap_s=2.0)
    decision = decide(present(), [b, c])
    assert isinstance(decision, Remain)
    # In order of urgency: C first (leave by 35), then B (by 55, and after the 3 s that C takes).
    assert decision.until_s == pytest.approx(min(40 - 2 - MARGIN_S, (60 - 2 - MARGIN_S) - 2 - 1))
    assert decision.back_s == pytest.approx(2 + 10 + 2 + 1 + 1)


def test_it_leaves_at_the_latest_moment_if_that_saves_more_than_it_costs() -> None:
    near = other(B, requests(20, MARGIN_S + 1.0 + DECIDE_WITHIN_S / 2, 20.0))
    decision = decide(present(), [near])
    assert isinstance(decision, Leave) and decision.model == B
    far = other(B, requests(20, MARGIN_S + 1.0 + DECIDE_WITHIN_S + 0.1, 20.0))
    assert isinstance(decide(present(), [far]), Remain)
    # Thirty running requests would miss their own objective meanwhile.
    costly = present(running_slack_s=(0.5,) * 30)
    assert isinstance(decide(costly, [near]), Remain)
    # Their eviction discards more than it saves.
    assert isinstance(decide(present(evicting_s=5.0, service_s=0.1), [near]), Remain)


def test_a_visit_with_work_has_a_least_length() -> None:
    near = other(B, requests(20, 1.0, 20.0))
    short = LEAST_VISIT_SWAPS * 4.0 - 0.1
    assert decide(present(back_s=4.0, awake_s=short), [near]) is NEVER
    assert isinstance(decide(present(back_s=4.0, awake_s=short + 0.2), [near]), Leave)


def test_what_would_not_end_before_the_latest_moment_is_begun_only_if_it_cannot_wait() -> None:
    remain = Remain(until_s=10.0, back_s=20.0)
    assert remain.begins(answer_s=9.0, latest_start_s=float("inf"))
    assert not remain.begins(answer_s=11.0, latest_start_s=float("inf"))
    assert remain.begins(answer_s=11.0, latest_start_s=25.0)
    assert not remain.begins(answer_s=11.0, latest_start_s=40.0)


def test_an_idle_instance_leaves_after_a_pause_of_one_swap_or_two_for_batch_work() -> None:
    timed = other(B, requests(5, 50.0, 60.0), swap_s=3.0)
    assert isinstance(decide(present(idle_s=2.9), [timed]), Remain)
    assert isinstance(decide(present(idle_s=3.1), [timed]), Leave)
    batch = other(B, NO_BACKLOG, swap_s=3.0, waiting=7)
    assert isinstance(decide(present(idle_s=5.9), [batch]), Remain)
    assert isinstance(decide(present(idle_s=6.1), [batch]), Leave)
    assert isinstance(decide(present(idle_s=0.0), [batch]), Remain)


def test_a_start_that_takes_longer_than_the_objective_counts_what_will_come() -> None:
    """What waits now is lost in any case, so that it gains nothing to go for it."""
    slow = other(B, requests(5, 0.0, 29.0), swap_s=45.0, arrivals_rps=1.0)
    assert isinstance(decide(present(), [slow]), Leave)
    busy = present(running_slack_s=(1.0,) * 200)
    assert isinstance(decide(busy, [slow]), Remain)


def test_a_higher_priority_does_not_wait_for_deadlines() -> None:
    urgent = other(B, NO_BACKLOG, waiting=1, priority=-1)
    assert isinstance(decide(present(priority=0, awake_s=0.1), [urgent]), Leave)
    assert isinstance(decide(present(priority=-1), [urgent]), Remain)
