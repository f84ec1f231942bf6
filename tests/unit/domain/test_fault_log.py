"""Failures by kind: counted each time, logged once per kind."""

import logging

import pytest

from qlm.domain.errors import EngineUnavailableError, StoreDataError
from qlm.domain.shell.faults import KINDS_MAX, FaultKind, FaultLog, kind_of

LOG = logging.getLogger("qlm.test")


def raised(error: Exception) -> Exception:
    """Return an error with a traceback of this line."""
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_outage_is_waited_for_an_error_of_the_domain_is_refused_and_the_rest_is_a_bug() -> None:
    assert kind_of(EngineUnavailableError("away")) is FaultKind.UNAVAILABLE
    assert kind_of(TimeoutError()) is FaultKind.UNAVAILABLE
    assert kind_of(StoreDataError("damaged")) is FaultKind.REFUSED
    assert kind_of(KeyError("id")) is FaultKind.BUG


def test_a_kind_is_logged_once_with_its_traceback_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[FaultKind] = []
    faults = FaultLog(counted.append)
    with caplog.at_level(logging.INFO, LOG.name):
        for n in range(3):
            faults.note(LOG, raised(KeyError(n)), "%s: turn skipped", "gpu-0")
    assert counted == [FaultKind.BUG] * 3
    assert [record.getMessage() for record in caplog.records] == ["gpu-0: turn skipped: KeyError(0)"]
    assert caplog.records[0].exc_info


def test_bugs_of_other_lines_and_other_turns_are_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    for doing in ("turn skipped", "poll failed"):
        faults.note(LOG, raised(KeyError("id")), doing)
    faults.note(LOG, raised(StoreDataError("damaged")), "poll failed")
    assert [record.getMessage() for record in caplog.records] == [
        "turn skipped: KeyError('id')",
        "poll failed: KeyError('id')",
        "poll failed: damaged",
    ]
    assert not caplog.records[2].exc_info


def test_outages_are_counted_and_left_to_the_log_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    counted: list[FaultKind] = []
    with caplog.at_level(logging.INFO, LOG.name):
        FaultLog(counted.append).note(LOG, raised(EngineUnavailableError("away")), "probe failed")
    assert counted == [FaultKind.UNAVAILABLE]
    assert not caplog.records


def test_the_number_of_kinds_kept_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    for n in range(KINDS_MAX + 5):
        faults.note(LOG, raised(ValueError(n)), f"turn {n}")
    assert len(caplog.records) == KINDS_MAX
