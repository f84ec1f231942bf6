"""Durations of iterations from arrivals of tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.profiling.timing import are_chunks, iterations_until, prompts_behind, steady_ms

MS = 1_000_000


def evenly(start_ms: float, pace_ms: float, tokens: int, chunk: int = 1) -> list[tuple[int, int]]:
    return [(round((start_ms + pace_ms * n) * MS), n) for n in range(chunk, tokens + 1, chunk)]


@given(st.integers(1, 8), st.floats(1, 50), st.integers(1, 3))
def test_the_pace_of_streams_that_run_together_is_found_whatever_the_chunks(
    streams: int, pace_ms: float, chunk: int
) -> None:
    together = [evenly(pace_ms * late, pace_ms, 60, chunk) for late in range(streams)]
    steady = steady_ms(together, 4)
    assert steady is not None
    assert steady[0] == pytest.approx(pace_ms, rel=1e-4)


def test_the_time_before_the_last_stream_begins_does_not_count() -> None:
    early = [(n * 100 * MS, n) for n in range(1, 11)] + [((1000 + n * 10) * MS, 10 + n) for n in range(1, 31)]
    late = [((1000 + n * 10) * MS, n) for n in range(1, 31)]
    steady = steady_ms([early, late], 4)
    assert steady is not None
    assert steady[0] == pytest.approx(10)
    assert steady[1] == pytest.approx((17.5 + 27.5) / 2)


@pytest.mark.parametrize(
    "streams",
    [
        [evenly(0, 10, 20), evenly(500, 10, 20)],
        [evenly(0, 10, 20), evenly(0, 10, 4)],
        [evenly(0, 10, 10)],
    ],
    ids=["one after the other", "one too short", "all too short"],
)
def test_streams_that_hardly_run_together_give_no_pace(streams: Sequence[list[tuple[int, int]]]) -> None:
    assert steady_ms(streams, 4) is None


def test_iterations_are_timed_by_the_tokens_of_a_decode() -> None:
    stream = [(10 * MS, 1), (20 * MS, 2), (30 * MS, 3), (90 * MS, 4), (150 * MS, 5), (160 * MS, 6)]
    assert iterations_until(stream, 151 * MS, 2) == ([10.0, 60.0, 60.0], 5)
    assert iterations_until(stream, 89 * MS, 1) == ([10.0, 60.0], 4)
    assert iterations_until(stream, 31 * MS, 2) is None, "it began too late"
    assert iterations_until([*stream[:3], *stream[4:]], 150 * MS, 2) is None, "two tokens came as one chunk"


@pytest.mark.parametrize(
    ("times", "whole"),
    [
        ([10, 60], True),
        ([10, 60, 60, 25], True),
        ([60, 60], False),
        ([10, 10, 60], False),
        ([10, 12], True),
    ],
    ids=["one", "three", "began before", "began later", "too short to judge"],
)
def test_a_prompt_that_took_other_iterations_than_expected_is_noticed(
    times: list[float], whole: bool
) -> None:
    assert are_chunks(times, 10.0) is whole


@pytest.mark.parametrize(
    ("async_scheduling", "later", "found"),
    [(True, 2, [25]), (True, 1, [20]), (False, 1, [20]), (False, 0, None), (True, 0, None)],
)
def test_prompts_right_behind_a_long_one_have_no_delay(
    async_scheduling: bool, later: int, found: list[float] | None
) -> None:
    times = [10.0, 15.0, 20.0] if async_scheduling else [15.0, 20.0]
    computed = prompts_behind(times, 10.0, async_scheduling=async_scheduling, iterations_later=later)
    assert computed == found
