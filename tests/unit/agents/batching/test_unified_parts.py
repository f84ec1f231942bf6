"""Each part of `unified` on cases computed by hand."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.unified.capacity import answer_in_batch, capacity
from qlm.agents.batching.policies.unified.demands import demands, most_left, tokens_left
from qlm.agents.batching.policies.unified.loads import link_wait_s, loads
from qlm.agents.batching.policies.unified.members import members
from qlm.agents.batching.policies.unified.order import (
    RESERVE_SHARE,
    Stage,
    ordered,
    packed,
    stages,
)
from qlm.agents.batching.policies.unified.policy import Unified
from qlm.agents.batching.policies.unified.prices import prices
from qlm.agents.batching.policies.unified.turns import (
    COMPUTING_SHARE,
    LOADING_SHARE,
    SPARE_S,
    TURNS_SHARE,
    spare,
    urgent,
)
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Place, View
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_drawn import views
from support.batch_views import MACHINE, PACE, Row, reader, view

SLOPED = MACHINE._replace(
    iteration=IterationTime(host_ms=0.0, linear_ms=((1.0, 10.0), (1_001.0, 110.0)), kv_ms=0.001)
)
"""10 ms for an iteration, 0.1 ms per token more, 1 us per token of context."""


def test_every_objective_becomes_slack_and_pace() -> None:
    seen = view(
        Row("new reader", arrival_s=3.0, rate=5.0, ttft_s=1.0),
        Row("reader", arrival_s=3.0, rate=5.0, ttft_s=1.0, generated=4, read_end_s=7.5, late_s=0.25),
        # 500 tokens, four deviations above the mean, take 10 s; the pace is for 150.
        Row("deadline", deadline_s=20.0),
        Row("new first token", arrival_s=3.0, rate=FIRST_TOKEN_ONLY, ttft_s=2.5),
        Row("answered", arrival_s=3.0, rate=FIRST_TOKEN_ONLY, ttft_s=2.5, generated=1, read_end_s=4.0),
        Row("batch"),
        now_s=5.0,
    )
    needs = demands(seen)
    np.testing.assert_allclose(needs.slack_s, [-1.0, 2.5, 5.0, 0.5, inf, inf])
    np.testing.assert_allclose(needs.pace, [5.0, 5.0, 10.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(needs.idle_s, [1.0, 0.25, 0.0, 0.0, 0.0, 0.0])
    assert needs.reads.tolist() == [True, True, False, True, False, False]
    assert needs.timed.tolist() == [False, False, True, False, False, False]


def test_of_a_reader_and_a_deadline_the_tighter_counts() -> None:
    both: dict[str, Any] = {"arrival_s": -1.0, "rate": 5.0, "ttft_s": 1.0, "generated": 4}
    seen = view(
        Row("deadline", read_end_s=4.0, deadline_s=12.84, **both),
        Row("reader", read_end_s=2.0, deadline_s=12.84, **both),
    )
    needs = demands(seen)
    # 496 tokens take 9.92 s; the pace is for 146.
    np.testing.assert_allclose(needs.slack_s, [2.92, 2.0])
    np.testing.assert_allclose(needs.pace, [146 / 12.84] * 2)
    assert needs.timed.tolist() == [True, False]


def test_a_deadline_is_hopeless_once_half_of_the_service_time_is_left() -> None:
    needs = demands(view(Row("late", deadline_s=1.6), Row("hopeless", deadline_s=1.4)))
    np.testing.assert_allclose(needs.slack_s, [-8.4, inf])
    assert needs.timed.tolist() == [True, False]
    assert needs.pace[1] == 0


def test_the_tokens_to_come_are_estimated_on_the_safe_side() -> None:
    seen = view(*(Row(str(tokens), generated=tokens) for tokens in (0, 60, 100, 500)))
    assert tokens_left(seen).tolist() == [150, 90, 50, 50]
    assert most_left(seen).tolist() == [500, 440, 400, 50]


def test_no_more_tokens_are_to_come_than_the_limit_of_the_request_leaves() -> None:
    """A short answer with a deadline was given up on an instance of long ones."""
    seen = view(
        Row("short", deadline_s=1.0, left_max=5), Row("long", deadline_s=1.0), Row("two left", left_max=2)
    )
    assert tokens_left(seen).tolist() == [5, 150, 2]
    assert most_left(seen).tolist() == [5, 500, 2]
    needs = demands(seen)
    assert needs.timed.tolist() == [True, False, False]
    assert needs.slack_s[0] == pytest.approx(1.0 - 5 * PACE.step_s)
    assert needs.pace[0] == pytest.approx(5.0)


def test_of_equal_answers_none_exceeds_the_mean() -> None:
    seen = view(Row("new"), pace=PACE._replace(answer_square_mean=PACE.answer_mean**2))
    assert most_left(seen).tolist() == [100]


def test_capacity_counts_the_answers_in_the_batch_and_the_prompts() -> None:
    # 16 000 tokens / (200 + 100 + 16) = 50.6 requests, each a token per 20 ms.
    assert capacity(view()) == pytest.approx(16_000 / 316 / 0.02)
    # 10 ms + 0.1 (B - 1) + 0.001 B 300, and of each token 200 / 100 prompt tokens of 0.1 ms.
    batch = 16_000 / 316
    step_ms = 10 + 0.1 * (batch - 1) + 0.3 * batch
    assert capacity(view(machine=SLOPED)) == pytest.approx(1000 / (step_ms / batch + 0.2))
    assert capacity(view(machine=MACHINE._replace(seqs_max=10))) == pytest.approx(500.0)


def test_long_answers_fill_the_batch_more_than_their_mean() -> None:
    assert answer_in_batch(PACE._replace(answer_square_mean=10_000.0)) == 50.0  # all of 100
    assert answer_in_batch(PACE._replace(answer_square_mean=40_000.0)) == 200.0
    assert answer_in_batch(PACE._replace(answer_square_mean=0.0)) == 50.0


def test_a_load_takes_the_faster_way() -> None:
    rows = [
        Row("new", prompt=200),
        Row("copied", prompt=200, host_tokens=200),
        Row("half", prompt=200, host_tokens=100),
    ]
    load = loads(view(*rows, machine=SLOPED))
    # 0.1 ms per token computed, 5 us per token loaded.
    np.testing.assert_allclose(load.takes_s, [0.02, 0.001, 0.0105])
    np.testing.assert_allclose(load.computed_s, [0.02, 0.0, 0.01])
    assert not load.recomputes.any()
    slow = loads(view(*rows, machine=SLOPED._replace(link_bytes_per_s=5e8)))
    np.testing.assert_allclose(slow.takes_s, [0.02, 0.02, 0.02])
    np.testing.assert_allclose(slow.computed_s, slow.takes_s)
    assert slow.recomputes.tolist() == [False, True, True]


def test_the_link_is_busy_until_its_loads_end() -> None:
    assert link_wait_s(view(now_s=2.0, machine=MACHINE._replace(load_free_s=2.5))) == pytest.approx(0.5)
    assert link_wait_s(view(now_s=3.0, machine=MACHINE._replace(load_free_s=2.5))) == 0.0


def test_urgent_is_who_would_wait_too_long_behind_earlier_loads() -> None:
    rows = [
        reader("soon", 1.5, prompt=280),  # loads 300 tokens in 30 ms
        reader("later", 1.55, prompt=4_980),  # then 5 000 in 500 ms
        reader("last", 2.0, prompt=1),
        reader("inside", 1.2, Place.INSIDE),
        reader("starved", 0.9, Place.INSIDE),
        Row("batch"),
    ]
    seen = view(*rows, machine=SLOPED)
    needs, takes_s = demands(seen), loads(seen).takes_s
    part = np.isfinite(needs.slack_s)
    assert urgent(seen, needs, part, takes_s, 0.0).tolist() == [False, False, False, False, True, False]
    assert urgent(seen, needs, part, takes_s, 0.1).tolist() == [False, True, False, False, True, False]
    assert urgent(seen, needs, part, takes_s, 0.6).tolist() == [True, True, True, False, True, False]


def test_spare_is_who_has_read_enough_for_a_round_of_all_loads() -> None:
    rows = [
        reader("rich", 3.0, Place.INSIDE, prompt=480),  # 500 tokens: 50 ms
        reader("poor", 2.4, Place.INSIDE, prompt=480),
        reader("outside", 9.0, prompt=0),  # 2 ms
        Row("timed", Place.INSIDE, deadline_s=90.0, prompt=0),
        Row("batch", Place.INSIDE, prompt=9_000),
    ]
    seen = view(*rows, machine=SLOPED)
    needs, load = demands(seen), loads(seen)
    part = np.isfinite(needs.slack_s)
    # Texts of the members: 102 ms, so a round takes 0.51 s.
    assert spare(seen, needs, part, load, capacity=0.0).tolist() == [True] + 4 * [False]


def test_rounds_of_loaded_texts_are_longer_than_their_loads_alone_would_make_them() -> None:
    rows = [
        reader("rich", 3.0, Place.INSIDE, prompt=480, host_tokens=496),
        reader("poor", 2.0, Place.INSIDE, prompt=480, host_tokens=496),
    ]
    seen = view(*rows, machine=SLOPED._replace(host_blocks=1000, link_bytes_per_s=1e10))
    needs, load = demands(seen), loads(seen)
    loading_s = float((load.takes_s - load.computed_s).sum())
    round_s = loading_s / LOADING_SHARE + float(load.computed_s.sum()) / COMPUTING_SHARE
    assert loading_s > 0.9 * float(load.takes_s.sum())
    assert SPARE_S < SPARE_S + round_s < 3.0
    assert spare(seen, needs, np.ones(2, np.bool_), load, capacity=0.0).tolist() == [True, False]
    seen = seen._replace(read_end_s=seen.now_s + SPARE_S + round_s * np.array([0.99, 1.01]))
    assert spare(seen, demands(seen), np.ones(2, np.bool_), load, 0.0).tolist() == [False, True]


@pytest.mark.parametrize("host_tokens", [0, 16, 480])
def test_copies_of_a_part_of_a_text_do_not_lengthen_a_round(host_tokens: int) -> None:
    # The prompts, computed again whole, take 0.8 s of a round of 4 s.
    rows = [reader(name, 6.5, Place.INSIDE, prompt=3_980, host_tokens=host_tokens) for name in "ab"]
    seen = view(*rows, machine=SLOPED._replace(host_blocks=1000, link_bytes_per_s=1e10))
    assert spare(seen, demands(seen), np.ones(2, np.bool_), loads(seen), capacity=0.0).all()


def test_while_the_capacity_has_room_spare_is_who_has_read_enough_for_the_loads_of_who_has_begun() -> None:
    rows = [
        reader("rich", 2.4, Place.INSIDE, prompt=480),  # 500 tokens: 50 ms
        reader("poor", 2.2, Place.INSIDE, prompt=480),
        reader("begun", 9.0, prompt=0),  # 2 ms
        reader("new", 0.5, generated=0, read_end_s=None, prompt=5_000),  # computed once, whoever makes way
        reader("new, too", 0.5, generated=0, read_end_s=None, prompt=5_000),
    ]
    seen = view(*rows, machine=SLOPED)
    needs, load = demands(seen), loads(seen)
    part, pace = np.isfinite(needs.slack_s), float(needs.pace.sum())
    # Texts of who has begun, and one more: 52 ms, so a round takes 0.26 s; with the new ones 5.5 s.
    enough = pace / TURNS_SHARE
    assert spare(seen, needs, part, load, enough + 0.1).tolist() == [True] + 4 * [False]
    assert not spare(seen, needs, part, load, enough - 0.1).any()


def test_a_reader_yields_after_ten_seconds_and_comes_back_into_free_capacity() -> None:
    rows = [
        reader("fine", 1.0),
        reader("idle", 1.0, late_s=12.0),
        reader("idler", -13.0),
        Row("hopeless", deadline_s=0.1),
        Row("batch"),
    ]
    seen = view(*rows)
    needs = demands(seen)
    assert members(seen, needs, 5.2, inf).tolist() == [True, False, False, False, False]
    assert members(seen, needs, 11.0, inf).tolist() == [True, True, False, False, False]
    assert members(seen, needs, 16.0, inf).tolist() == [True, True, True, False, False]


def test_admission_promises_a_share_of_the_capacity_by_rank_then_slack() -> None:
    new: dict[str, Any] = {"generated": 0, "read_end_s": None}
    rows = [
        reader("runs", 1.0, Place.INSIDE, rank=9),
        reader("late", 0.0, arrival_s=-3.0, **new),
        reader("in time", 0.0, arrival_s=-0.5, **new),
        reader("better rank", 0.0, arrival_s=-4.0, rank=-1, **new),
    ]
    seen = view(*rows)
    needs = demands(seen)
    assert members(seen, needs, 10.0, 1.1).tolist() == [True, False, False, True]
    assert members(seen, needs, 10.0, 1.5).tolist() == [True, False, True, True]
    assert members(seen, needs, 10.0, 0.1).tolist() == [True, False, False, False]


def test_the_order_goes_by_stage_and_then_by_its_own_measure() -> None:
    rows = [
        Row("batch late", arrival_s=2.0, rank=1),
        Row("batch early", arrival_s=1.0, rank=1),
        Row("batch inside", Place.INSIDE, arrival_s=9.0, rank=5),
        Row("new, worse rank", arrival_s=0.0, rank=2, deadline_s=50.0),
        Row("new, better rank", arrival_s=0.0, rank=1, deadline_s=60.0),
        reader("waits", 9.0),
        reader("rich", 30.0, Place.INSIDE),
        reader("spare", 20.0, Place.INSIDE),
        reader("dear", 1.0, Place.INSIDE, prompt=10),
        reader("cheap", 1.0, Place.INSIDE, prompt=500),
        Row("timed", Place.INSIDE, deadline_s=90.0),
        Row("timed, tighter", Place.INSIDE, deadline_s=80.0),
    ]
    seen = view(*rows)
    needs = demands(seen)
    part = np.isfinite(needs.slack_s)
    load = loads(seen)
    due, waits = urgent(seen, needs, part, load.takes_s, 0.0), spare(seen, needs, part, load, 0.0)
    stage = stages(seen, needs, part, due, waits)
    names = [seen.ids[row] for row in ordered(seen, needs, stage, prices(seen, needs))]
    assert names == [
        "timed, tighter", "timed", "dear", "cheap", "spare", "rich", "waits",
        "new, better rank", "new, worse rank", "batch inside", "batch early", "batch late",
    ]  # fmt: skip
    assert sorted(set(stage.tolist())) == list(range(Stage.BEST_EFFORT + 1))


def test_best_effort_requests_come_in_if_they_leave_a_tenth_of_what_members_take() -> None:
    stage = np.array([Stage.READER, Stage.RESIDENT, Stage.BEST_EFFORT, Stage.BEST_EFFORT])
    rows = [Row(str(tokens), prompt=tokens - 1) for tokens in (800, 480, 160, 96)]  # 50, 30, 10, 6 blocks
    order = np.arange(4)

    def run(blocks: int, *rows_of_order: int) -> list[int]:
        seen = view(*rows, machine=MACHINE._replace(kv_blocks=blocks))
        return [int(row) for row in packed(Packing(seen), stage, np.array(rows_of_order))]

    # Who does not fit is passed over for one who does.
    kept = [run(blocks, *order) for blocks in (90, 91, 94, 95, 100, 101)]
    assert kept == [[0, 1], [0, 1, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]]
    assert run(49, 1, 2, 3) == [1, 2, 3]  # without members there is only room for growth


def test_behind_a_long_best_effort_request_the_cache_is_filled_with_short_ones() -> None:
    rows = [
        *(
            Row(f"reader {n}", Place.INSIDE, prompt=780, generated=20, rate=5.0, ttft_s=1.0)
            for n in range(10)
        ),
        Row("long", prompt=7_519),
        *(Row(f"short {n}", prompt=159) for n in range(40)),
    ]
    seen = view(*rows, machine=MACHINE._replace(kv_blocks=1000))
    assert {f"short {n}" for n in range(40)} <= set(Unified().decide(seen).run)


def stages_of(seen: View) -> dict[str, int]:
    needs, load = demands(seen), loads(seen)
    part = members(seen, needs, capacity(seen), inf)
    due = urgent(seen, needs, part, load.takes_s, link_wait_s(seen))
    found = stages(seen, needs, part, due, spare(seen, needs, part, load, capacity(seen)))
    return dict(zip(seen.ids, found.tolist(), strict=True))


@given(seen=views())
def test_no_more_blocks_than_a_tenth_of_the_members_are_left_to_waste(seen: View) -> None:
    run, stage = Unified().decide(seen).run, stages_of(seen)
    takes = {id: int(seen.needed_blocks[row]) for row, id in enumerate(seen.ids)}
    left = seen.machine.kv_blocks - sum(takes[id] for id in run)
    reserve = RESERVE_SHARE * sum(takes[id] for id in run if stage[id] < Stage.RESIDENT)
    for id in seen.ids:
        if id not in run and len(run) < seen.machine.seqs_max:
            kept_free = max(len(run) + 1, reserve if stage[id] == Stage.BEST_EFFORT else 0)
            assert takes[id] + kept_free > left
