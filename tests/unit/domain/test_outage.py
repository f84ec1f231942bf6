"""An outage of the store in the log of a process: one line when it goes, one when it is back."""

import pytest

from qlm.domain.shell.outage import QUIET_S, Outage


def test_an_outage_is_two_lines_however_often_calls_fail_and_reads_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage("store")
    outage.worked(0.0)
    for second in range(1, 61):
        outage.failed(float(second), "NOREPLICAS")
        outage.worked(second + 0.5)
    assert caplog.messages == ["the store is away: NOREPLICAS"]
    outage.worked(60.0 + QUIET_S)
    outage.worked(90.0)
    assert caplog.messages[1:] == ["the store is back after 59 s"]
    outage.failed(100.0, "it was killed")
    assert caplog.messages[2:] == ["the store is away: it was killed"]


def test_a_server_is_away_until_each_lost_connection_is_restored(caplog: pytest.LogCaptureFixture) -> None:
    outage, one, other = Outage("broker"), object(), object()
    outage.lost(one, 10.0, "reset")
    outage.lost(other, 11.0, "reset")
    outage.restored(one, 12.0)
    outage.worked(30.0)
    assert outage.lasts
    outage.restored(other, 31.0)
    outage.worked(31.0 + QUIET_S - 0.1)
    assert outage.lasts
    outage.worked(31.0 + QUIET_S)
    assert [each.getMessage() for each in caplog.records] == [
        "the broker is away: reset",
        "the broker is back after 21 s",
    ]
