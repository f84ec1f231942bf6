"""Decisions about work that a later visit serves as well, and about the end of that visit."""

from dataclasses import replace

import pytest

from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.decision import decide
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import Leave, Remain
from support.visit_parts import B, C, backlog_of, deferred, other, present, requests


def far(count: int, first_s: float, *, swap_s: float = 2.0) -> Candidate:
    """Return reports that are due in some minutes."""
    reports = requests(count, first_s, first_s + 10.0, service_s=0.3, objective_s=600.0)
    return other(B, reports, swap_s=swap_s)


CODE = {"arrivals": ((0.15, 1.0),), "back_s": 2.0, "idle_s": 1.0, "service_s": 0.1}
"""Completions that a swap makes late; an absence of two swaps and some work misses about one."""


def test_an_idle_instance_lets_wait_what_a_later_visit_serves_as_well() -> None:
    """Three models on two instances: each report took the completions of some seconds, four in ten in all."""
    here = present(**CODE)
    assert isinstance(decide(here, [far(5, 500.0)]), Remain)
    assert isinstance(decide(here, [far(5, 25.0)]), Leave), "a later visit would be too late"


def test_a_visit_that_misses_next_to_nothing_is_made_for_what_could_wait() -> None:
    here = present(**CODE | {"arrivals": ((0.001, 1.0),)})
    assert isinstance(decide(here, [far(5, 500.0)]), Leave)


def test_of_two_models_that_are_worth_a_visit_the_one_with_more_work_goes_first() -> None:
    few = other(C, requests(1, 25.0, 25.0), swap_s=2.0)
    many = other(B, backlog_of(*far(20, 300.0).backlog.parts, *requests(2, 25.0, 25.0).parts), swap_s=2.0)
    decision = decide(present(**CODE), [few, many])
    assert isinstance(decision, Leave)
    assert decision.model == B


def reports_visited(awake_s: float, *, first_s: float) -> Present:
    """Return a visit to reports that have their objective still, ten of which run."""
    waits = requests(50, first_s, first_s + 100.0, service_s=0.3, objective_s=600.0)
    return present(awake_s=awake_s, backlog=waits, running_slack_s=(300.0,) * 10, back_s=2.0, service_s=0.3)


def test_a_visit_goes_on_until_its_work_is_done_since_the_rest_would_need_another_one() -> None:
    """A completion that came ended it after six seconds, again and again: no report got on."""
    code = other(C, requests(1, 1.0, 1.0, objective_s=2.0), swap_s=2.0, arrivals_rps=0.5)
    assert isinstance(decide(reports_visited(20.0, first_s=200.0), [code]), Remain)
    assert isinstance(decide(reports_visited(130.0, first_s=200.0), [code]), Leave), "it was long enough"


def test_work_that_is_lost_in_any_case_keeps_no_visit() -> None:
    code = other(C, requests(1, 1.0, 1.0, objective_s=2.0), swap_s=2.0, arrivals_rps=5.0)
    lost = replace(reports_visited(20.0, first_s=1.0), running_slack_s=())
    lost = replace(lost, backlog=requests(50, 1.0, 20.0, service_s=0.3, objective_s=600.0))
    assert isinstance(decide(lost, [code]), Leave)


def test_batch_work_is_worth_the_more_the_longer_it_has_waited() -> None:
    worths = [backlog_of(deferred(10, waits_s)).urgent(2.0) for waits_s in (0.0, 60.0, 120.0, 240.0)]
    assert worths == pytest.approx([0.0, 1.0, 2.0, 4.0])


def test_a_visit_is_not_put_off_for_arrivals_that_a_later_one_misses_as_well() -> None:
    """Beside a chat that never paused, reports were left to be late a few at a time."""
    chats = {"arrivals": ((1.8, 1.0),), "back_s": 2.0, "service_s": 0.05}
    waits = requests(300, 4.0, 250.0, service_s=0.1, objective_s=300.0)
    assert isinstance(decide(present(**chats), [other(B, waits, swap_s=2.0)]), Leave)
    few = requests(10, 4.0, 8.0, service_s=0.1, objective_s=300.0)
    assert isinstance(
        decide(present(**chats | {"arrivals": ((9.0, 1.0),)}), [other(B, few, swap_s=2.0)]), Remain
    )
