"""Limits of connections as rules: sizes, times, addresses, which connection to close, what to log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qlm.gateway.core.connection_limits import (
    NOTICE_S,
    Breach,
    ConnectionLimits,
    Phase,
    Progress,
    client_of,
)
from qlm.gateway.core.open_connections import NOTE_S, Admission, OpenConnections, RefusalNotes
from qlm.gateway.http.connections.refusals import refusal

LIMITS = ConnectionLimits(shared_addresses=())


def tiny(**more: object) -> ConnectionLimits:
    """Return limits without shared addresses, some of them below what a configuration may have."""
    return LIMITS.model_copy(update=more)


# --- one connection


def test_a_request_at_its_limits_is_not_refused() -> None:
    progress = Progress()
    progress.begin(0)
    progress.url_bytes = LIMITS.url_bytes_max
    for _ in range(LIMITS.headers_max - 1):
        progress.add_header(b"a", b"")
    progress.add_header(b"a", b"x" * (LIMITS.header_bytes_max - 5 * LIMITS.headers_max))
    assert progress.header_bytes == LIMITS.header_bytes_max
    assert progress.excess(LIMITS) is None


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        ({"url_bytes": LIMITS.url_bytes_max + 1}, Breach.URL),
        ({"headers": LIMITS.headers_max + 1}, Breach.HEADERS),
        ({"header_bytes": LIMITS.header_bytes_max + 1}, Breach.HEADERS),
        ({"framing_bytes": LIMITS.url_bytes_max + LIMITS.header_bytes_max + 1}, Breach.HEADERS),
    ],
)
def test_each_size_has_its_limit(change: dict[str, int], breach: Breach) -> None:
    assert Progress(phase=Phase.HEAD, **change).excess(LIMITS) is breach


@pytest.mark.parametrize(
    ("phase", "time_s"),
    [
        (Phase.NEW, LIMITS.headers_timeout_s),
        (Phase.HEAD, LIMITS.headers_timeout_s),
        (Phase.WAITING, LIMITS.idle_timeout_s),
        (Phase.BODY, LIMITS.body_timeout_s),
        (Phase.ENDING, NOTICE_S),
    ],
)
def test_each_state_has_its_time(phase: Phase, time_s: float) -> None:
    progress = Progress()
    progress.enter(phase, 100)
    assert not progress.late(LIMITS, 100 + time_s)
    assert progress.late(LIMITS, 100 + time_s + 0.001)


def test_an_answer_takes_as_long_as_it_takes() -> None:
    progress = Progress()
    progress.enter(Phase.WHOLE, 0)
    assert not progress.late(LIMITS, 1e9)


@given(st.floats(1, 1e6), st.floats(1, 100))
def test_a_body_at_the_pace_of_the_limit_is_never_late(seconds: float, faster: float) -> None:
    progress = Progress()
    progress.enter(Phase.BODY, 0)
    progress.body_bytes = int(seconds * LIMITS.body_bytes_per_s_min * faster) + 1
    assert not progress.late(LIMITS, seconds)


def test_a_body_slower_than_that_is_late_in_the_end() -> None:
    progress = Progress()
    progress.enter(Phase.BODY, 0)
    progress.body_bytes = 10 * int(LIMITS.body_bytes_per_s_min)
    assert not progress.late(LIMITS, LIMITS.body_timeout_s + 10)
    assert progress.late(LIMITS, LIMITS.body_timeout_s + 10.1)


def test_time_for_a_request_begins_with_its_first_byte() -> None:
    progress = Progress()
    progress.begin(5)  # some bytes
    progress.begin(7)  # enough to see that a request begins
    assert progress.since_s == 5


# --- addresses


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("10.1.2.3", None),
        ("a socket in a folder", None),
    ],
)
def test_an_address_counts_as_one_client_unless_many_share_it(address: str, client: str | None) -> None:
    shared = (*ConnectionLimits().shared_addresses, "10.0.0.0/8")
    assert client_of(shared)(address) == client


def test_a_shared_address_is_an_address_or_a_network() -> None:
    with pytest.raises(ValidationError, match="expected an IP address, or a network"):
        ConnectionLimits(shared_addresses=("nginx",))


# --- all connections


def test_one_address_cannot_have_all_connections() -> None:
    kept: OpenConnections[int] = OpenConnections(tiny(per_address_max=2))
    assert kept.admit(1, "203.0.113.7", 0) == kept.admit(2, "203.0.113.7", 0) == Admission()
    assert kept.admit(3, "203.0.113.7", 0) == Admission(breach=Breach.ADDRESS)
    assert kept.admit(4, "203.0.113.8", 0) == Admission()
    kept.forget(1)
    kept.forget(1)
    kept.forget(3)
    assert kept.admit(5, "203.0.113.7", 0) == Admission()
    assert kept.admit(6, "203.0.113.7", 0) == Admission(breach=Breach.ADDRESS)


def test_the_connection_that_waited_longest_makes_room() -> None:
    kept: OpenConnections[int] = OpenConnections(tiny(connections_max=3))
    for number in range(3):
        kept.admit(number, None, number)
    kept.busy(0)
    assert kept.admit(3, None, 3) == Admission(closed=1)
    kept.wait(0)
    assert [kept.admit(number, None, number).closed for number in (4, 5, 6)] == [2, 3, 4]
    for number in (5, 6):
        kept.busy(number)
    assert kept.admit(7, None, 7) == Admission(closed=0)
    kept.busy(7)
    assert kept.admit(8, None, 8) == Admission(breach=Breach.CONNECTIONS)
    assert len(kept) == 3


def test_a_new_connection_has_a_moment_for_its_first_bytes() -> None:
    kept: OpenConnections[int] = OpenConnections(tiny(connections_max=2))
    assert kept.admit(1, None, 10.0) == kept.admit(2, None, 10.05) == Admission()
    assert kept.admit(3, None, 10.09) == Admission(breach=Breach.CONNECTIONS)
    assert kept.admit(3, None, 10.11) == Admission(closed=1)
    kept.busy(2)
    kept.wait(2)  # it has had its answer
    assert kept.admit(4, None, 10.11) == Admission(closed=2)


def test_the_bodies_that_come_for_longest_are_refused_first() -> None:
    kept: OpenConnections[int] = OpenConnections(tiny(unfinished_bytes_max=100))
    assert [*kept.receive(1, 10), *kept.receive(2, 60), *kept.receive(1, 20)] == []
    assert list(kept.receive(3, 20)) == [1]
    assert kept.unfinished_bytes == 80
    kept.finish(2)
    assert list(kept.receive(4, 200)) == [3, 4]
    assert kept.unfinished_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["admit", "busy", "wait", "body", "forget"]))))
def test_nothing_is_left_behind(steps: list[tuple[int, str]]) -> None:
    limits = tiny(connections_max=4, per_address_max=2, unfinished_bytes_max=50)
    kept: OpenConnections[int] = OpenConnections(limits)
    open_now: dict[int, str] = {}
    for connection, step in steps:
        address = f"203.0.113.{connection % 2}"
        match step:
            case "admit" if connection not in open_now:
                admission = kept.admit(connection, address, 0)
                if admission.closed is not None:
                    del open_now[admission.closed]
                if admission.breach is None:
                    open_now[connection] = address
            case "busy":
                kept.busy(connection)
            case "wait":
                kept.wait(connection)
            case "body" if connection in open_now:
                kept.busy(connection)
                list(kept.receive(connection, 20))
            case "forget":
                kept.forget(connection)
                open_now.pop(connection, None)
        assert len(kept) == len(open_now) <= limits.connections_max
        assert kept.unfinished_bytes <= limits.unfinished_bytes_max
    for connection in list(open_now):
        kept.forget(connection)
    assert (len(kept), kept.unfinished_bytes) == (0, 0)
    assert [kept.admit(number, "203.0.113.9", 0).breach for number in (10, 11)] == [None, None]


# --- answers and log


@pytest.mark.parametrize("breach", Breach)
def test_the_code_of_an_answer_is_the_limit_that_was_broken(breach: Breach) -> None:
    error = refusal(breach, LIMITS)
    assert error.code == breach
    assert ("retry-after" in error.headers) == (error.status == 503)


def test_each_kind_is_logged_at_first_and_then_once_a_minute() -> None:
    notes = RefusalNotes()
    assert [notes.first(Breach.URL, at) for at in (0, 1, 2)] == [True, False, False]
    assert notes.first(Breach.HEADERS, 3)
    assert notes.due(NOTE_S - 1) == []
    assert notes.due(NOTE_S) == [(Breach.URL, 2)]
    assert not notes.first(Breach.URL, NOTE_S + 1)
    assert notes.due(NOTE_S + 4) == []
    assert notes.first(Breach.HEADERS, NOTE_S + 5)  # a minute without any
    assert notes.due(2 * NOTE_S) == [(Breach.URL, 1)]
    assert notes.due(3 * NOTE_S) == notes.due(4 * NOTE_S) == []
    assert notes.first(Breach.URL, 4 * NOTE_S)
