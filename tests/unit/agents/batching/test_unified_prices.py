"""Prices of readers, against the slopes of what they lose."""

import pytest

from qlm.agents.batching.policies.unified.demands import demands
from qlm.agents.batching.policies.unified.prices import (
    GOODPUT_WEIGHT,
    INSIDE_FACTOR,
    ON_TIME_FACTOR,
    prices,
)
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Place
from qlm.domain.streaming.experience import qoe_star
from qlm.domain.streaming.goodput import users_left
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import LATE_S, Timeline
from support.batch_views import PACE, Row, reader, view


@pytest.mark.parametrize("late_s", [0.0, 1.5])
@pytest.mark.parametrize("pause_s", [0.1, 2.0])
@pytest.mark.parametrize("generated", [1, 40, 200])
def test_a_price_is_what_one_more_second_costs_the_reader_by_remaining_work(
    generated: int, pause_s: float, late_s: float
) -> None:
    left = 70
    seen_so_far = Timeline(Reader(1.0, 5.0))
    seen_so_far.deliver(generated, 1.0 + late_s)
    now_s = seen_so_far.read_end_s + pause_s
    row = Row(
        "a", generated=generated, rate=5.0, ttft_s=1.0, read_end_s=seen_so_far.read_end_s, left_mean=left,
        late_s=seen_so_far.late_s, late_sum_s=seen_so_far.late_sum_s,
    )  # fmt: skip
    seen = view(row, now_s=now_s)

    def value(idle_s: float) -> float:
        timeline = Timeline(Reader(1.0, 5.0))
        timeline.deliver(generated, 1.0 + late_s)
        timeline.deliver(left, now_s + idle_s)
        kept = (generated + left) * (1 - users_left(timeline.late_s)) / seen.pace.answer_mean
        return qoe_star(timeline) + GOODPUT_WEIGHT * kept

    slope = (value(0.0) - value(1e-5)) / 1e-5
    price = float(prices(seen, demands(seen))[0])
    blocks = (row.prompt + generated + left / 2) / seen.machine.block_tokens
    assert price * left * blocks == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("answer_mean", [100.0, 340.0])
def test_who_has_nearly_ended_has_a_higher_price_than_a_new_reader(answer_mean: float) -> None:
    new = reader(
        "new", 0.5, Place.INSIDE, generated=0, arrival_s=-0.5, read_end_s=None, prompt=160,
        left_mean=answer_mean,
    )  # fmt: skip
    ending = reader(
        "ending", 0.5, Place.INSIDE, generated=int(answer_mean), prompt=160, left_mean=answer_mean / 10
    )
    seen = view(new, ending, pace=PACE._replace(answer_mean=answer_mean))
    price = prices(seen, demands(seen))
    # By quality of experience alone, it would be 0.5 to 0.7 of the other.
    assert price[1] > price[0]


def test_who_runs_has_four_times_the_price_and_no_reader_has_none() -> None:
    seen = view(
        reader("out", 1.0), reader("in", 1.0, Place.INSIDE), Row("batch"), Row("timed", deadline_s=9.0)
    )
    price = prices(seen, demands(seen))
    assert price[1] == pytest.approx(INSIDE_FACTOR * price[0])
    assert price[2] == price[3] == 0
    assert prices(seen, demands(seen))[0] > 0


def test_a_reader_that_never_idled_has_a_higher_price_than_one_that_has() -> None:
    seen = view(reader("in time", 0.0), reader("idle", 0.0, late_s=1e-5), reader("late now", -1e-5))
    in_time, idle, late_now = prices(seen, demands(seen))
    assert idle == pytest.approx(late_now, rel=1e-4)
    assert in_time == pytest.approx(ON_TIME_FACTOR * idle, rel=1e-4)


def test_the_reader_of_a_first_token_has_a_price() -> None:
    seen = view(Row("first", rate=FIRST_TOKEN_ONLY, ttft_s=1.0), Row("reader", rate=4.8, ttft_s=1.0))
    price = prices(seen, demands(seen))
    assert price[0] == pytest.approx(price[1])


def test_a_reader_whose_wait_still_counts_as_in_time_keeps_the_price_of_one_that_never_idled() -> None:
    seen = view(reader("in time", 0.0), reader("rounded", 0.0, late_s=LATE_S))
    in_time, rounded = prices(seen, demands(seen))
    assert rounded == pytest.approx(in_time, rel=1e-4)
