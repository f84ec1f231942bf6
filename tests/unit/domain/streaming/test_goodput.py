"""Token deadlines, goodput and the value of tokens, on the papers' examples and their tricks."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.streaming.goodput import (
    HALF_LIFE_S,
    Streamed,
    goodput,
    latency_goodput,
    smooth_goodput,
    users_left,
)
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.token_value import (
    effective_tokens,
    token_weight,
    unread,
)
from support.token_deadlines import (
    TokenDeadlines,
    TokenGaps,
    WholeAnswer,
    deadlines,
    idle_s,
    met,
)

READER = Reader(1.0, 10.0)

requests = st.builds(Streamed, st.integers(0, 500), st.floats(0, 60), st.booleans())


# --- deadlines


def test_an_objective_is_a_deadline_for_each_token() -> None:
    times_s = [0.4, 0.6, 1.0]
    assert list(deadlines(TokenGaps(0.5, 0.2), times_s)) == pytest.approx([0.5, 0.6, 0.8])
    assert list(deadlines(WholeAnswer(2.0), times_s)) == [float("inf"), float("inf"), 2.0]
    assert list(deadlines(READER, times_s)) == pytest.approx([1.0, 1.1, 1.2])


def test_an_objective_is_met_if_each_token_is_in_time() -> None:
    times_s = [0.4, 0.6, 1.0]
    assert not met(TokenGaps(0.5, 0.2), times_s)
    assert met(TokenGaps(0.5, 0.41), times_s)
    assert met(WholeAnswer(1.0), times_s)
    assert met(READER, times_s)
    assert not met(READER, [])


@pytest.mark.parametrize("objective", [TokenGaps(0.5, 0.1), WholeAnswer(0.6), Reader(0.5, 10.0)])
def test_rounding_makes_no_token_late(objective: TokenDeadlines) -> None:
    assert met(objective, [0.5 + 1e-9, 0.6 + 2e-9])
    assert not met(objective, [0.5, 0.60001])


def test_releasing_tokens_later_smooths_gaps_and_saves_no_idle_time() -> None:
    made_s = [0.5, 0.52, 0.54, 1.6, 1.62, 1.64]
    released_s = [0.5 + 0.4 * token for token in range(6)]
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(made_s)]
    smooth_s = [later - earlier for earlier, later in itertools.pairwise(released_s)]
    assert max(gaps_s) == pytest.approx(1.06)
    assert max(smooth_s) == pytest.approx(0.4)
    assert idle_s(READER, released_s) >= idle_s(READER, made_s)


# --- goodput


def test_a_third_of_the_users_has_left_after_3_s_without_text() -> None:
    assert users_left(0.0) == 0.0
    assert users_left(3.0) == pytest.approx(0.32, abs=1e-3)
    assert users_left(HALF_LIFE_S) == pytest.approx(0.5)


def test_an_abandoned_request_lowers_smooth_goodput_but_not_goodput() -> None:
    kept = [Streamed(100, 0, True), Streamed(100, 2, False), Streamed(200, 8, False)]
    abandoned = [*kept[:2], Streamed(0, 8, False)]
    assert goodput(kept, 1.0) == goodput(abandoned, 1.0) == 100
    assert smooth_goodput(kept, 1.0) == pytest.approx(248.8, abs=0.1)
    assert smooth_goodput(abandoned, 1.0) == pytest.approx(177.3, abs=0.1)


@given(st.lists(requests, min_size=1, max_size=20), st.data())
def test_neither_a_later_token_nor_a_dropped_request_gains(rows: list[Streamed], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    later = rows[at]._replace(idle_s=rows[at].idle_s + data.draw(st.floats(0, 30)))
    dropped = rows[at]._replace(tokens=0)
    before = smooth_goodput(rows, 10.0)
    for worse in (later, dropped):
        assert smooth_goodput([*rows[:at], worse, *rows[at + 1 :]], 10.0) <= before + 1e-9


def test_g_counts_what_met_its_objective_over_the_latency_of_all() -> None:
    # Jobs of 2, 3 and 4 s with objectives of 9, 3 and 7 s, one at a time.
    assert latency_goodput([(2, True), (5, False), (9, False)]) == pytest.approx(1 / 16)
    assert latency_goodput([(3, True), (7, True), (9, True)]) == pytest.approx(3 / 19)
    assert latency_goodput([]) == 0.0


# --- value of tokens


def test_a_token_counts_less_the_more_is_unread() -> None:
    assert [token_weight(unread, full=10, alpha=0.1) for unread in (0, 10, 15, 20, 30)] == [1, 1, 0.5, 0, 0]


def test_a_client_reads_from_its_first_token_on() -> None:
    assert list(unread([5.0, 5.0, 5.0, 5.2], 10.0)) == pytest.approx([0, 1, 2, 1])


def test_a_reader_who_waited_has_nothing_unread_and_goes_on_later() -> None:
    times_s = [0.0, 3.0, 3.0, 3.1]  # at 1 token/s: idle from 1 to 3 s
    assert list(unread(times_s, 1.0)) == pytest.approx([0, 0, 1, 1.9])


def test_tokens_far_ahead_of_the_reader_are_not_effective() -> None:
    at_once, at_pace = [0.0] * 100, [token / 10 for token in range(100)]
    assert effective_tokens(at_pace, 10.0) == 100
    # 11 count fully (0 to 10 unread), the next nine 0.9 to 0.1.
    assert effective_tokens(at_once, 10.0) == pytest.approx(11 + 4.5)
