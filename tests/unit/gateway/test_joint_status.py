"""The state of several answers to one call."""

from typing import Any, cast

import pytest

from qlm.domain.outcome import Outcome
from qlm.gateway.api.fields.requests import RequestStatus
from qlm.gateway.sessions.families.joint_status import joint_status

ENDED: dict[str, Any] = {
    "outcome": Outcome.STOP,
    "cancel_requested": False,
    "prompt_tokens": 3,
    "output_tokens": 5,
    "first_token_s": 1.0,
    "ended_s": 2.0,
    "met": True,
    "late_by_s": 0.0,
}
RUNNING = {**ENDED, "outcome": None, "ended_s": None, "met": None, "late_by_s": None}
LATE = {**ENDED, "first_token_s": 3.0, "ended_s": 9.0, "met": False, "late_by_s": 4.0}
OVERDUE = {**RUNNING, "met": False, "late_by_s": 1.5}


def joint(*members: dict[str, Any], shown: int = 0) -> dict[str, Any]:
    statuses = [cast("RequestStatus", each) for each in members]
    return cast("dict[str, Any]", joint_status(statuses[shown], statuses, range(len(statuses))))


@pytest.mark.parametrize(
    ("members", "met", "late_by_s"),
    [
        ([ENDED, ENDED], True, 0.0),
        ([ENDED, LATE], False, 4.0),
        ([LATE, ENDED], False, 4.0),
        ([RUNNING, ENDED], None, None),
        ([RUNNING, LATE], False, 4.0),
        ([OVERDUE, LATE], False, 4.0),
    ],
)
def test_all_are_late_if_one_is(
    members: list[dict[str, Any]], met: bool | None, late_by_s: float | None
) -> None:
    found = joint(*members)
    assert (found["met"], found["late_by_s"]) == (met, late_by_s)


def test_they_begin_with_the_first_and_end_with_the_last() -> None:
    found = joint(LATE, ENDED)
    assert (found["first_token_s"], found["ended_s"], found["output_tokens"]) == (1.0, 9.0, 10)
    found = joint(RUNNING, {**ENDED, "cancel_requested": True})
    assert (found["ended_s"], found["cancel_requested"]) == (None, True)
    assert (
        joint({**RUNNING, "first_token_s": None}, {**RUNNING, "first_token_s": None})["first_token_s"] is None
    )


def test_one_that_ended_without_an_answer_is_late_by_no_time() -> None:
    failed = {**ENDED, "outcome": Outcome.FAILED, "met": False, "late_by_s": None}
    found = joint(failed, LATE)
    assert (found["met"], found["late_by_s"]) == (False, None)
