"""Forecasts that were made, and how they came out by the counters of their classes."""

from dataclasses import replace

import pytest

from qlm.controller.core.expected.log import (
    AGAIN_NS,
    NOTHING_FORECAST,
    RETURN_NS,
    ForecastLog,
    Wait,
    look,
    note,
)
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.forecast_errors import Turn

S = 1_000_000_000
CHAT = RequestClass(ModelId("m"), "deadline-60s", target_ms=60_000.0)
FIRST = Group(id=GroupId("g1"), cls=CHAT, seq=0, count=4)
SECOND = Group(id=GroupId("g2"), cls=CHAT, seq=1, count=6)
SOON = Wait(turn=Turn.SWAP, leaves_s=20.0, ends_s=25.0)


def view(left: int, ended: int = 0, *, late: int = 0, leased: int = 10, accepted: int = 10) -> ClusterView:
    """Return a view of the class, of whose ten requests some have left the queue."""
    classes = [ClassView(cls=CHAT, queued=accepted - left, groups=(), accepted=accepted, finished=ended)]
    if late:
        classes.append(ClassView(cls=CHAT.missed(), queued=late, groups=(), accepted=late))
    return ClusterView(classes=tuple(classes), instances=(), queues=(), leased={InstanceId("gpu-0"): leased})


def noted(*, left: int = 0) -> ForecastLog:
    waits = {FIRST.id: SOON, SECOND.id: SOON}
    return note(NOTHING_FORECAST, view(left), [FIRST, SECOND], waits, 0)


def after(log: ForecastLog, *views: tuple[float, ClusterView]) -> ForecastLog:
    for at_s, seen in views:
        log = look(log, seen, round(at_s * S))
    return log


def outcomes(log: ForecastLog) -> tuple[float, float]:
    return round(float(log.waits.counts.sum()), 3), round(float(log.ends.counts.sum()), 3)


def test_a_group_has_left_with_its_last_request_and_ended_with_as_many_ends() -> None:
    log = after(noted(), (10, view(3)), (20, view(4, 3)), (26, view(5, 4)))
    assert outcomes(log) == (0, 1), "it may still be returned to the queue"
    log = after(log, (21 + RETURN_NS / S, view(5, 4)))
    assert outcomes(log) == (1, 1)
    for errors, forecast_s in ((log.waits, 20.0), (log.ends, 25.0)):
        (at,) = errors.counts.nonzero()[2]
        assert at == pytest.approx(32, abs=1), f"as forecast: {forecast_s} s"


def test_a_request_that_was_returned_has_not_left() -> None:
    log = after(noted(), (5, view(4)), (12, view(2)), (90, view(4)), (91 + RETURN_NS / S, view(4)))
    assert outcomes(log)[0] == 1
    assert log.waits.counts.nonzero()[2][0] > 40, "it left after 90 s, not after 5"


def test_a_wait_that_demotions_end_teaches_nothing() -> None:
    log = after(noted(), (5, view(2)), (30, view(10, late=6)), (80, view(10, late=6)))
    assert outcomes(log)[0] == 0


def test_requests_that_end_without_an_answer_delay_no_end() -> None:
    log = after(noted(), (40, view(10, 2, leased=0)))
    assert outcomes(log)[1] > 0, "no agent has any of them"


def test_an_idle_class_has_left_the_queue() -> None:
    log = after(noted(), (30, ClusterView(classes=(), instances=(), queues=())))
    assert list(outcomes(log)) == pytest.approx([1.99, 0.0])
    assert not log.open


def test_a_store_that_was_emptied_leaves_no_forecast_open() -> None:
    log = after(noted(), (10, view(0, accepted=3)))
    assert not log.open
    assert outcomes(log.overdue(300 * S)) == (0, 0), "nothing is known of how they came out"


def test_what_is_overdue_counts_before_it_comes_out() -> None:
    log = noted()
    before, later = log.overdue(10 * S), log.overdue(300 * S)
    assert outcomes(before) == (0, 0)
    assert list(outcomes(later)) == pytest.approx([1.99, 1.99])
    assert outcomes(log) == (0, 0)


def test_groups_are_forecast_again_after_doubled_pauses() -> None:
    log, times, waits = NOTHING_FORECAST, [], {FIRST.id: SOON}
    for at_s in range(0, 200, 2):
        known = len(log.open)
        log = note(log, view(0), [FIRST], waits, at_s * S)
        times += [at_s] * (len(log.open) > known)
    pause_s = AGAIN_NS // S
    assert times == [0, pause_s, 3 * pause_s, 7 * pause_s, 15 * pause_s]


def test_nothing_new_changes_nothing() -> None:
    log = noted()
    assert look(log, view(0), 5 * S) is log
    assert note(log, view(0), [FIRST, SECOND], {FIRST.id: SOON, SECOND.id: SOON}, 5 * S) is log


def test_only_what_was_learned_is_kept() -> None:
    log = after(noted(), (30, ClusterView(classes=(), instances=(), queues=())))
    kept = replace(log, open=noted().open).learned(0.5)
    assert not kept.open
    assert outcomes(kept)[0] == pytest.approx(outcomes(log)[0] / 2, abs=0.01)
