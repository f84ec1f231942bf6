"""The checker of bad ends judges an answer by what its gateway could know."""

from collections.abc import Sequence
from random import Random

import pytest

from qlm.domain.ids import RequestId
from simulation.checkers.answers import bad_ends_have_a_reason
from simulation.client import UNKNOWN
from simulation.history import Answered, Event, Indexed, KeyLost, LookedUp
from simulation.workload import draw_scripts

ID = RequestId("r0")
SCRIPTS = draw_scripts(Random(0), 1)
INDEXED = Indexed(0.0, ID)
LOST = KeyLost(1.0, "request", ID)
MISSED = LookedUp(2.0, ID, known=False)
INDEXED_AGAIN = Indexed(2.001, ID)
FOUND = LookedUp(2.002, ID, known=True)
NOT_FOUND = Answered(2.003, 0, ID, UNKNOWN, 0, "")


@pytest.mark.parametrize(
    "before", [(INDEXED, LOST, MISSED), (INDEXED, LOST, MISSED, INDEXED_AGAIN)], ids=["lost", "on its way"]
)
def test_a_request_may_be_unknown_that_the_gateway_did_not_find(before: Sequence[Event]) -> None:
    assert list(bad_ends_have_a_reason((*before, NOT_FOUND), SCRIPTS)) == []


@pytest.mark.parametrize(
    "before",
    [(INDEXED,), (INDEXED, LOST, INDEXED_AGAIN), (INDEXED, LOST, MISSED, INDEXED_AGAIN, FOUND)],
    ids=["known", "known again", "found"],
)
def test_a_request_is_not_unknown_that_the_gateway_could_find(before: Sequence[Event]) -> None:
    (violation,) = bad_ends_have_a_reason((*before, NOT_FOUND), SCRIPTS)
    assert UNKNOWN in violation
