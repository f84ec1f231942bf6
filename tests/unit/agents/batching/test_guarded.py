"""A policy that fails, or names no time, ends nothing: its guard decides instead."""

from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.guarded import GuardedPolicy
from qlm.agents.batching.policies.edf import EarliestDeadlineFirst
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.view import Place, View
from qlm.domain.ids import RequestId
from support.batch_views import Row, view

A, B = RequestId("a"), RequestId("b")
ROWS = (Row("a"), Row("b", Place.INSIDE, deadline_s=9.0), Row("c", deadline_s=7.0))


class Broken:
    def decide(self, view: View) -> Decision:
        raise ZeroDivisionError

    def room(self, view: View) -> int:
        raise ZeroDivisionError


class Answering:
    """A policy that answers with whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, view: View) -> Any:
        return self.answer

    def room(self, view: View) -> Any:
        return self.answer


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


def untyped(**fields: Any) -> Decision:
    """Return a decision as policies without types make it."""
    return Decision(**fields)


MALFORMED = {
    "none": None,
    "rows": SimpleNamespace(run=["a", "b"]),
    "no requests": untyped(run=None),
    "unhashable": untyped(run=[["a"]]),
    "hold": untyped(run=[], hold=3),
    "recompute": untyped(run=[], recompute=None),
    "time": untyped(run=[], again_s="soon"),
    "digits": untyped(run=[], again_s="7"),
}


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
def test_an_answer_that_is_no_decision_is_a_failure(answer: Any) -> None:
    reports = list[None]()
    guarded = GuardedPolicy(Answering(answer), lambda: reports.append(None))
    assert guarded.decide(view(*ROWS)) == FirstComeFirstServed().decide(view(*ROWS))
    assert guarded.room(view(*ROWS)) == FirstComeFirstServed().room(view(*ROWS))
    assert len(reports) == 2


def test_a_decision_of_other_collections_is_put_into_their_types() -> None:
    loose = SimpleNamespace(run=iter("aba"), hold=["b"], recompute=[], skips=1, again_s=np.float64(7))
    decision = GuardedPolicy(Answering(loose), lambda: pytest.fail("it can be read")).decide(view(*ROWS))
    assert decision == Decision(run=(A, B), hold=frozenset({B}), skips=True, again_s=7.0)
    assert type(decision.again_s) is float and decision.skips is True


@pytest.mark.parametrize("again_s", [inf, -inf, nan, 1e300])
def test_a_time_that_is_no_number_is_left_out(again_s: float) -> None:
    guarded = GuardedPolicy(Timeless(again_s), lambda: None)
    assert guarded.decide(view(*ROWS)) == Decision(run=view(*ROWS).ids)
    assert guarded.room(view(*ROWS)) == 7


def test_a_sound_policy_decides_itself() -> None:
    guarded = GuardedPolicy(EarliestDeadlineFirst(), lambda: pytest.fail("nothing failed"))
    assert guarded.decide(view(*ROWS)) == EarliestDeadlineFirst().decide(view(*ROWS))
