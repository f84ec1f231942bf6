"""A policy that fails, or names no time, ends nothing: its guard decides instead."""

from math import inf, nan

import pytest

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.guarded import GuardedPolicy
from qlm.agents.batching.policies.edf import EarliestDeadlineFirst
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.view import Place, View
from support.batch_views import Row, view

ROWS = (Row("a"), Row("b", Place.INSIDE, deadline_s=9.0), Row("c", deadline_s=7.0))


class Broken:
    def decide(self, view: View) -> Decision:
        raise ZeroDivisionError

    def room(self, view: View) -> int:
        raise ZeroDivisionError


class Timeless:
    def __init__(self, again_s: float) -> None:
        self.again_s = again_s

    def decide(self, view: View) -> Decision:
        return Decision(run=view.ids, again_s=self.again_s)

    def room(self, view: View) -> int:
        return 7


def test_a_failure_is_reported_and_first_come_first_served_decides() -> None:
    reports = list[None]()
    guarded = GuardedPolicy(Broken(), lambda: reports.append(None))
    assert guarded.decide(view(*ROWS)) == FirstComeFirstServed().decide(view(*ROWS))
    assert guarded.room(view(*ROWS)) == FirstComeFirstServed().room(view(*ROWS))
    assert len(reports) == 2


@pytest.mark.parametrize("again_s", [inf, -inf, nan])
def test_a_time_that_is_no_number_is_left_out(again_s: float) -> None:
    guarded = GuardedPolicy(Timeless(again_s), lambda: None)
    assert guarded.decide(view(*ROWS)) == Decision(run=("a", "b", "c"))
    assert guarded.room(view(*ROWS)) == 7


def test_a_sound_policy_decides_itself() -> None:
    guarded = GuardedPolicy(EarliestDeadlineFirst(), lambda: pytest.fail("nothing failed"))
    assert guarded.decide(view(*ROWS)) == EarliestDeadlineFirst().decide(view(*ROWS))
