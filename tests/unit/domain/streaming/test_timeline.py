"""The staircase of lateness: token by token, by runs, and what the papers say of it."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qlm.domain.streaming.experience import Span, qoe, qoe_of_times, qoe_star
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import LATE_S, Timeline
from support.token_deadlines import idle_s, met

seconds = st.floats(0, 50, allow_nan=False)
readers = st.builds(Reader, st.floats(0, 20), st.floats(0.5, 50))


def delivered(times_s: list[float], reader: Reader) -> Timeline:
    timeline = Timeline(reader)
    for at_s in times_s:
        timeline.deliver(1, at_s)
    return timeline


def with_lateness(late_s: list[float], reader: Reader) -> Timeline:
    """The tokens come when they are due, later by so much each."""
    return delivered([reader.due_s(token) + late for token, late in enumerate(late_s)], reader)


@given(st.lists(seconds, min_size=1, max_size=40).map(sorted), readers)
def test_the_lateness_is_how_much_later_the_reader_starts_each_token(
    times_s: list[float], reader: Reader
) -> None:
    starts_s: list[float] = []
    for token, at_s in enumerate(times_s):
        before_s = starts_s[-1] + 1 / reader.tokens_per_s if starts_s else 0.0
        starts_s.append(max(at_s, reader.due_s(token), before_s))
    late_s = [start_s - reader.due_s(token) for token, start_s in enumerate(starts_s)]
    timeline = delivered(times_s, reader)
    assert timeline.late_s == pytest.approx(late_s[-1], abs=1e-9)
    assert timeline.first_wait_s == pytest.approx(late_s[0], abs=1e-9)
    assert timeline.late_sum_s == pytest.approx(sum(late_s), abs=1e-7)
    assert timeline.read_end_s == pytest.approx(starts_s[-1] + 1 / reader.tokens_per_s, abs=1e-9)


@given(st.lists(seconds, min_size=1, max_size=40).map(sorted), readers)
def test_a_reader_is_idle_by_the_largest_lateness_of_a_token(times_s: list[float], reader: Reader) -> None:
    timeline = delivered(times_s, reader)
    assert timeline.late_s == pytest.approx(idle_s(reader, times_s), abs=1e-9)
    assume(abs(timeline.late_s - LATE_S) > 1e-9)  # there the sums may round to either side
    assert timeline.in_time == met(reader, times_s)


@given(
    st.lists(seconds, max_size=5).map(sorted),
    st.integers(1, 200),
    seconds,
    st.floats(0, 2),
    st.floats(0, 0.05),
    readers,
)
def test_a_run_of_iterations_is_the_same_as_its_tokens_one_by_one(
    before_s: list[float], tokens: int, pause_s: float, step_s: float, growth_s: float, reader: Reader
) -> None:
    first_s = (before_s[-1] if before_s else 0.0) + pause_s
    times_s = [first_s + k * step_s + k * (k - 1) / 2 * growth_s for k in range(tokens)]
    whole = delivered(before_s, reader)
    whole.deliver_run(tokens, first_s, step_s, growth_s)
    each = delivered([*before_s, *times_s], reader)
    assert whole.tokens == each.tokens
    assert whole.late_s == pytest.approx(each.late_s, abs=1e-6)
    assert whole.late_sum_s == pytest.approx(each.late_sum_s, rel=1e-9, abs=1e-5)
    assert whole.first_wait_s == pytest.approx(each.first_wait_s, abs=1e-9)


@pytest.mark.parametrize("first_s", [0.5, 1.5, 3.0])
@pytest.mark.parametrize(
    ("step_s", "growth_s"), [(0.1, 0.0), (0.3, 0.0), (0.0, 0.02), (0.1, 0.02), (0.3, 0.02)]
)
@pytest.mark.parametrize("runs", [1, 3, 40])
def test_the_stalls_of_a_run_are_those_of_its_tokens_one_by_one(
    first_s: float, step_s: float, growth_s: float, runs: int
) -> None:
    """A run had two of them: simulations, whose engines report up to 16 tokens at once, had a tenth."""
    reader, tokens = Reader(1.0, 8.0), 120
    times_s = [first_s + k * step_s + k * (k - 1) / 2 * growth_s for k in range(tokens)]
    cut, size = Timeline(reader), tokens // runs
    for begin in range(0, tokens, size):
        cut.deliver_run(size, times_s[begin], step_s + begin * growth_s, growth_s)
    assert cut.stalls == delivered(times_s, reader).stalls


@given(st.integers(1, 20), st.integers(1, 20), seconds, readers)
def test_tokens_that_come_together_are_as_late_as_one_by_one_at_one_time(
    first: int, second: int, at_s: float, reader: Reader
) -> None:
    together = Timeline(reader)
    together.deliver(first, at_s)
    together.deliver(second, at_s + 1)
    each = delivered([at_s] * first + [at_s + 1] * second, reader)
    assert together.late_s == pytest.approx(each.late_s)
    assert together.late_sum_s == pytest.approx(each.late_sum_s)


def test_waits_before_the_first_token_and_after_it_are_counted_apart() -> None:
    timeline = delivered([3.0, 3.2, 9.0], Reader(1.0, 1.0))  # due after 1, 2 and 3 s
    assert timeline.first_wait_s == pytest.approx(2.0)
    assert timeline.stalled_s == pytest.approx(4.0)
    assert timeline.late_s == pytest.approx(6.0)
    assert timeline.stalls == 1


def test_who_has_seen_tokens_in_time_begins_with_the_next() -> None:
    timeline = Timeline(Reader(1.0, 2.0), seen=10)
    timeline.deliver(1, 6.5)
    assert timeline.tokens == 11
    assert timeline.late_s == pytest.approx(0.5)


# --- quality of experience


def test_a_delay_of_an_eighteenth_of_the_reading_time_costs_a_tenth() -> None:
    reader = Reader(1.0, 5.0)
    delay_s = reader.reads_s(90) / 18
    timeline = with_lateness([delay_s] * 90, reader)
    assert qoe(timeline) == pytest.approx(0.9)
    assert qoe_star(timeline) == pytest.approx(0.9)


def test_a_slowdown_by_ten_percent_costs_about_a_tenth() -> None:
    reader, tokens = Reader(1.0, 5.0), 20_000
    timeline = Timeline(reader)
    timeline.deliver_run(tokens, 1.0, 1 / (0.9 * reader.tokens_per_s))
    assert qoe(timeline) == pytest.approx(10 / 11, abs=1e-4)
    assert qoe_star(timeline) == pytest.approx(0.9, abs=1e-4)


def test_what_comes_faster_than_the_reader_changes_nothing() -> None:
    reader = Reader(1.0, 5.0)
    assert qoe(delivered([0.1] * 50, reader)) == qoe(with_lateness([0.0] * 50, reader)) == 1.0


def test_to_withhold_the_last_token_raises_andes_measure_and_not_ours() -> None:
    reader = Reader(1.0, 4.0)  # eight tokens are read in 2 s
    honest = with_lateness([1.0] * 8, reader)
    withheld = with_lateness([1.0] * 7 + [2.0], reader)
    assert qoe(honest) == pytest.approx(0.5)
    assert qoe(withheld) == pytest.approx(0.625)
    assert qoe_star(withheld) < qoe_star(honest) == pytest.approx(0.5)
    never = with_lateness([1.0] * 7 + [1e9], reader)
    assert qoe(never) == pytest.approx(1 - 1 / 8)


@given(st.lists(seconds, min_size=1, max_size=30).map(sorted), readers, st.data())
def test_no_later_token_raises_the_quality(times_s: list[float], reader: Reader, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(times_s) - 1))
    delay_s = data.draw(st.floats(0, 10))
    later_s = sorted([*times_s[:begin], *(at_s + delay_s for at_s in times_s[begin:])])
    before, after = delivered(times_s, reader), delivered(later_s, reader)
    assert qoe_star(after) <= qoe_star(before) + 1e-12
    assert after.late_s >= before.late_s


@given(st.lists(seconds, min_size=1, max_size=30).map(sorted), readers)
def test_the_closed_form_is_the_quotient_of_the_areas(times_s: list[float], reader: Reader) -> None:
    assert qoe_of_times(times_s, reader) == pytest.approx(qoe(delivered(times_s, reader)), abs=1e-9)


def test_up_to_the_last_delivery_late_but_at_once_is_worse_than_late_and_slow() -> None:
    reader = Reader(1.0, 5.0)
    at_once = [22.0] * 50
    slowly = [2.0 + 20.0 * token / 49 for token in range(50)]
    assert qoe_of_times(at_once, reader, span=Span.DELIVERY) == pytest.approx(0.0)
    assert qoe_of_times(slowly, reader, span=Span.DELIVERY) > 0.5
    assert qoe_of_times(at_once, reader) < qoe_of_times(slowly, reader)


def test_a_late_first_token_costs_more_by_alpha() -> None:
    reader = Reader(1.0, 5.0)
    times_s = [3.0 + token / 5 for token in range(10)]
    assert qoe_of_times(times_s, reader, alpha=0.5) == pytest.approx(qoe_of_times(times_s, reader) / 4)


def test_an_answer_without_tokens_is_worth_nothing() -> None:
    reader = Reader(1.0, 5.0)
    assert qoe(Timeline(reader)) == qoe_star(Timeline(reader)) == qoe_of_times([], reader) == 0.0
