"""Decisions about a visit: who loses what, the latest moment to leave, and for whom."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.scheduling.visits.backlog import NO_BACKLOG
from qlm.agents.core.scheduling.visits.decision import DECIDE_WITHIN_S, LEAST_VISIT_SWAPS, decide
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import MARGIN_S, NEVER, Leave, Remain
from support.visit_parts import B, C, backlog_of, deferred, other, present, requests, work


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
    assert NEVER.begins(work(1e6), latest_start_s=float("inf"))


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
    assert remain.begins(work(9.0), latest_start_s=float("inf"))
    assert not remain.begins(work(11.0), latest_start_s=float("inf"))
    assert remain.begins(work(11.0), latest_start_s=25.0)
    assert not remain.begins(work(11.0), latest_start_s=40.0)


def test_what_gets_on_by_more_than_its_eviction_discards_is_begun_as_a_stopgap() -> None:
    """0.1 s of a full batch for 20 s of an answer: 10 s of it are worth 0.05 s."""
    remain = Remain(until_s=10.0, back_s=20.0)
    assert remain.begins(work(20.0, refill_s=0.04), latest_start_s=float("inf"))
    assert not remain.begins(work(20.0, refill_s=0.06), latest_start_s=float("inf"))
    assert not remain.ends(work(20.0))
    assert not Remain(until_s=-1.0, back_s=20.0).begins(work(20.0, refill_s=0.0), latest_start_s=40.0)


def test_what_an_absence_would_lose_is_begun_even_beyond_the_latest_moment() -> None:
    """Found on four models: instances stayed for them, and left them waiting beside an idle engine."""
    beyond = Remain(until_s=-12.0, back_s=20.0)
    assert beyond.begins(work(30.0), latest_start_s=15.0)
    assert not beyond.begins(work(30.0), latest_start_s=24.0)


def test_an_instance_that_stays_beyond_the_latest_moment_begins_what_ends_within_a_swap() -> None:
    near = other(B, requests(20, 1.0, 20.0), swap_s=4.0)
    costly = present(running_slack_s=(0.5,) * 60)
    decision = decide(costly, [near])
    assert isinstance(decision, Remain) and decision.until_s == 4.0


def test_who_may_not_be_evicted_ends_before_the_latest_moment() -> None:
    far = other(B, requests(20, 40.0, 60.0))
    decision, later = decide(present(drain_s=0.0), [far]), decide(present(drain_s=12.0), [far])
    assert isinstance(decision, Remain) and isinstance(later, Remain)
    assert later.until_s == pytest.approx(decision.until_s - 12.0)


def test_what_ends_before_those_that_may_not_be_evicted_is_begun() -> None:
    """It cannot leave sooner. All else waited for a swap's time beside one long answer."""
    for near in (requests(20, 1.0, 20.0), requests(20, 120.0, 140.0)):
        decision = decide(present(drain_s=100.0), [other(B, near, swap_s=4.0)])
        assert isinstance(decision, Remain)
        assert decision.begins(work(90.0), latest_start_s=float("inf"))
        assert not decision.begins(work(110.0), latest_start_s=float("inf"))


def test_late_and_batch_requests_count_each_time_their_patience_has_run_out_and_more_each_time() -> None:
    for waits_s, worth, first_s in ((0.0, 2.0, 120.0), (100.0, 2.0, 20.0), (130.0, 4.0, 110.0)):
        part = deferred(10, waits_s)
        assert part is not None
        assert part.worth == pytest.approx(worth) and part.first_s == pytest.approx(first_s)
        assert part.lost(first_s - 1.1) == 0.0 and part.lost(first_s + 1) == pytest.approx(worth)
    late, slow = deferred(1, 0.0, objective_s=5.0), deferred(1, 0.0, objective_s=100.0)
    assert late is not None and late.first_s == 60.0, "at least half the patience of batch work"
    assert slow is not None and slow.first_s == 300.0, "three objectives"
    assert deferred(10, 0.0, weight=0.0) is None


def test_batch_work_ends_a_visit_once_it_has_waited_long_enough() -> None:
    """Before, it waited until the instance was idle: 500 s and more beside a busy model."""
    for waits_s in (0.0, 115.0):
        forgotten = other(B, backlog_of(deferred(40, waits_s)), waiting=40)
        decision = decide(present(), [forgotten])
        assert isinstance(decision, Leave if waits_s else Remain)
    few = other(B, backlog_of(deferred(4, 115.0)), waiting=4)
    assert isinstance(decide(present(), [few]), Remain), "not worth one request"
    assert isinstance(decide(present(), [other(B, backlog_of(deferred(4, 355.0)), waiting=4)]), Leave)


def test_late_work_is_served_after_hopeful_work_and_does_not_delay_it() -> None:
    hopeful = requests(10, 30.0, 30.0)
    both = backlog_of(*hopeful.parts, deferred(1000, 100.0))
    assert both.parts[0] is hopeful.parts[0]
    assert both.lost(28.9) == pytest.approx(hopeful.lost(28.9) + deferred_lost(1000, 100.0, 29.9))
    assert both.work_s == pytest.approx(1.0 + 10.0)


def deferred_lost(count: int, waits_s: float, begin_s: float) -> float:
    part = deferred(count, waits_s)
    assert part is not None
    return part.lost(begin_s)


def test_an_idle_instance_leaves_at_once_if_its_own_requests_can_wait_or_none_may_come() -> None:
    """Found in drawn scenarios: idle for as long as a cold start takes, beside waiting requests."""
    for arrivals in ((), ((10.0, 5.0),)):
        for backlog in (requests(1, 50.0, 60.0), NO_BACKLOG):
            far = other(B, backlog, swap_s=3.0, waiting=1)
            assert isinstance(decide(present(idle_s=0.01, arrivals=arrivals), [far]), Leave)
            assert isinstance(decide(present(idle_s=0.0, arrivals=arrivals), [far]), Remain)


def test_an_idle_instance_leaves_for_the_model_that_gains_most_per_second() -> None:
    """Found in a drawn scenario: it went for the most urgent one, which the swap was too slow for."""
    urgent = other(B, requests(1, 2.0, 2.0), swap_s=40.0)
    many = other(C, requests(6, 50.0, 60.0), swap_s=40.0)
    decision = decide(present(idle_s=1.0), [urgent, many])
    assert isinstance(decision, Leave) and decision.model == C
    near = other(B, requests(1, 2.0, 2.0), swap_s=1.0)
    decision = decide(present(idle_s=1.0), [near, many])
    assert isinstance(decision, Leave) and decision.model == B


def test_an_idle_instance_counts_also_requests_that_cannot_be_in_time() -> None:
    few, many = (other(model, NO_BACKLOG, waiting=n) for model, n in ((B, 2), (C, 3)))
    decision = decide(present(idle_s=1.0), [few, many])
    assert isinstance(decision, Leave) and decision.model == C
    coming = ((1.0, 1.88),)
    here = present(idle_s=0.01, arrivals=coming)
    assert isinstance(decide(here, [few]), Remain), "0.12 of those that come in 2 s"
    assert isinstance(decide(here, [many]), Leave)


@pytest.mark.parametrize(("back_s", "leaves"), [(3.0, True), (45.0, False)])
def test_an_idle_instance_counts_the_arrivals_that_a_start_makes_quick_to_serve(
    back_s: float, leaves: bool
) -> None:
    """Found in a drawn scenario: 45 s to start each of seven models once, and it waited as long each time.

    Where only one model fits into host memory, each visit costs a start again.
    """
    slow = replace(other(B, NO_BACKLOG, waiting=1, swap_s=45.0), quick=((0.02, 5.0),))
    here = present(idle_s=1.0, back_s=back_s, arrivals=((0.1, 1.0),))
    assert isinstance(decide(here, [slow]), Leave) is leaves


@pytest.mark.parametrize(("answer_s", "leaves"), [(5.0, True), (50.0, False), (85.0, False)])
def test_a_start_makes_no_arrivals_quick_to_serve_that_find_the_instance_busy(
    answer_s: float, leaves: bool
) -> None:
    """Found in a drawn scenario: one request for a second model was worth a start of 49 s.

    The awake model had 16 requests per minute; later ones for the other would have found the instance busy.
    """
    slow = replace(other(B, NO_BACKLOG, waiting=1, swap_s=49.0), quick=((0.05, 5.0),))
    here = present(idle_s=0.5, arrivals=((0.27, 12.0),), answer_s=answer_s)
    assert isinstance(decide(here, [slow]), Leave) is leaves


def test_an_instance_is_idle_less_often_the_more_comes_and_the_longer_answers_take() -> None:
    here = present(arrivals=((0.1, 1.0), (0.1, 9.0)), answer_s=12.0)
    assert here.idle_share(2.0) == pytest.approx(math.exp(-2.0))
    assert here.idle_share(20.0) == 1.0


def test_an_instance_with_requests_that_it_may_begin_is_not_idle() -> None:
    far = other(B, requests(5, 50.0, 60.0), swap_s=3.0)
    own = ((work(2.0), 100.0),)
    assert isinstance(decide(present(idle_s=9.0, waiting=own), [far]), Remain)
    too_long = ((work(1e4), 1e4),)
    assert isinstance(decide(present(idle_s=9.0, waiting=too_long), [far]), Leave)


def test_a_start_that_takes_longer_than_the_objective_counts_what_will_come() -> None:
    """What waits now is lost in any case, so that it gains nothing to go for it."""
    slow = other(B, requests(5, 0.0, 29.0), swap_s=45.0, arrivals_rps=1.0)
    assert isinstance(decide(present(), [slow]), Leave)
    busy = present(running_slack_s=(1.0,) * 200)
    assert isinstance(decide(busy, [slow]), Remain)


def test_two_models_with_swaps_as_long_as_their_objectives_do_not_take_turns() -> None:
    """Found in a drawn scenario: after each swap what would come counted for the other; nobody was served."""
    waits = requests(5, 1.0, 3.0, objective_s=5.0)
    for rate_rps, leaves in ((1.0, False), (1.5, False), (4.0, True)):
        far = other(B, waits, swap_s=40.0, arrivals_rps=rate_rps)
        here = Present(backlog=NO_BACKLOG, back_s=40.0, awake_s=1000.0, arrivals=((1.0, 4.0),))
        assert isinstance(decide(here, [far]), Leave) is leaves, rate_rps


def test_a_higher_priority_does_not_wait_for_deadlines() -> None:
    urgent = other(B, NO_BACKLOG, waiting=1, priority=-1)
    assert isinstance(decide(present(priority=0, awake_s=0.1), [urgent]), Leave)
    assert isinstance(decide(present(priority=-1), [urgent]), Remain)


def test_an_instance_that_would_be_idle_begins_what_may_not_end() -> None:
    """Found in a drawn scenario: idle for 38 s beside late work of its awake model."""
    far, too_long = other(B, requests(5, 50.0, 60.0), swap_s=3.0), (work(1e4), 1e4)
    remain = decide(present(idle_s=9.0, waiting=(too_long,), spare_s=1.0), [far])
    assert isinstance(remain, Remain)
    assert remain.begins(too_long[0], latest_start_s=1e4)
    ends = (work(2.0), 100.0)
    busy = decide(present(waiting=(too_long, ends), spare_s=1.0), [far])
    assert isinstance(busy, Remain)
    assert not busy.begins(too_long[0], latest_start_s=1e4)


def test_an_idle_instance_stays_while_its_absence_costs_more_than_what_waits_is_worth() -> None:
    """One late request (0.2) against arrivals whose objectives would be missed."""
    coming, swaps_s = ((0.1, 1.0),), 5.0
    for waits_s, idle_s, leaves in ((1.0, 4.9, False), (1.0, 30.0, False), (300.0, 30.0, True)):
        far = other(B, backlog_of(deferred(1, waits_s)), swap_s=swaps_s)
        here = present(idle_s=idle_s, back_s=swaps_s, arrivals=coming)
        assert isinstance(decide(here, [far]), Leave) is leaves, (waits_s, idle_s)


def test_fewer_arrivals_are_expected_the_longer_none_comes() -> None:
    expected = present(arrivals=((1.0, 0.0),)).coming_lost(10.0)
    assert expected == pytest.approx(10.0)
    assert present(arrivals=((1.0, 0.0),), idle_s=4.0).coming_lost(10.0) == pytest.approx(5.0)


def test_a_visit_with_objectives_of_many_minutes_lasts_until_its_answers_end() -> None:
    """Found in a drawn scenario: 182 swaps for 484 requests, first come first served 63.

    All that waits counted as saved by leaving now, against leaving half an objective of 1 000 s later.
    """
    waits = backlog_of(*requests(10, 4.0, 400.0, service_s=1.0, objective_s=1000.0).parts)
    here = present(running_slack_s=(5.0,) * 3, evicting_s=1.0, service_s=1.0)
    assert isinstance(decide(here, [other(B, waits)]), Remain)
