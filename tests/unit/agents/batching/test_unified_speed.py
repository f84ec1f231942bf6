"""Batches of `unified` that end where speed does."""

from dataclasses import replace
from typing import Any

import numpy as np

from qlm.agents.batching.policies.unified.demands import demands
from qlm.agents.batching.policies.unified.order import Stage
from qlm.agents.batching.policies.unified.policy import Unified
from qlm.agents.batching.policies.unified.speed import (
    readers_falling_behind,
    size_of_most_goodput,
    who_runs_first,
)
from qlm.agents.batching.view import Place, View
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_views import MACHINE, PACE, Row, view

STEEP = MACHINE._replace(
    iteration=IterationTime(host_ms=0.0, linear_ms=((1.0, 100.0), (51.0, 350.0)), kv_ms=0.0), seqs_max=50
)
"""100 ms for an iteration of one request, 5 ms per request more: 200 ms, the pace of the readers, for 21."""

SHORT_PROMPTS = PACE._replace(prompt_mean=0.0)


def readers(count: int, place: Place = Place.INSIDE, **other: Any) -> list[Row]:
    """Return readers of 5 tokens per second who wait for their next token from now on."""
    fields: dict[str, Any] = {
        "rate": 5.0,
        "ttft_s": 1.0,
        "generated": 20,
        "read_end_s": 0.0,
        "arrival_s": -5.0,
    }
    return [Row(f"{place.name} {number}", place, **(fields | other)) for number in range(count)]


def seen(*rows: Row) -> View:
    return view(*rows, machine=STEEP, pace=SHORT_PROMPTS)


def chosen(*rows: Row) -> tuple[str, ...]:
    return tuple(Unified().decide(seen(*rows)).run)


def test_a_batch_that_is_fast_enough_holds_all_who_fit() -> None:
    assert len(chosen(*readers(20))) == 20
    assert len(chosen(*readers(20, rate=1.0), *(Row(f"batch {number}") for number in range(30)))) == 50


def test_batch_work_fills_no_more_than_what_leaves_the_readers_in_time() -> None:
    run = chosen(*readers(20), *(Row(f"batch {number}") for number in range(30)))
    assert len(run) in (21, 22) and all(row.id in run for row in readers(20))


def test_a_batch_that_would_be_too_slow_ends_with_the_readers_that_it_serves_in_time() -> None:
    # 21 are served in 200 ms each; three more cost each of 130 tokens 15 ms: 2 s.
    running = len(chosen(*readers(40)))
    assert 21 <= running <= 24


def test_who_runs_stays_and_new_readers_wait() -> None:
    rows = [*readers(21), *readers(20, Place.OUTSIDE, generated=0, read_end_s=None, arrival_s=-1.0)]
    run = chosen(*rows)
    assert set(run) >= {row.id for row in rows[:21]}
    assert len(run) <= 24


def test_unread_text_lets_a_slow_batch_go_on() -> None:
    assert len(chosen(*readers(40, read_end_s=60.0))) == 40


def test_readers_too_fast_for_any_batch_do_not_shrink_it_to_one() -> None:
    # Even alone, a reader of 12 tokens per second falls behind; alone, all others would wait.
    assert len(chosen(*readers(40, rate=12.0))) >= 5


def test_best_effort_work_never_counts_as_a_reader() -> None:
    batch = seen(*(Row(f"batch {number}", Place.INSIDE) for number in range(40)))
    stage, rows = np.full(40, Stage.RESIDENT), np.arange(40)
    reads = readers_falling_behind(batch, demands(batch), stage, rows)
    assert not reads.any()
    # More requests give more tokens per second.
    assert size_of_most_goodput(batch, demands(batch), rows, reads) == 40


def test_the_order_of_all_but_readers_is_kept() -> None:
    rows = [Row("timed"), *readers(1, Place.OUTSIDE), *readers(1), Row("batch")]
    stage = np.array([Stage.DEADLINE, Stage.READER, Stage.READER, Stage.BEST_EFFORT])
    assert who_runs_first(seen(*rows), stage, np.arange(4)).tolist() == [0, 2, 1, 3]


def test_a_batch_fast_enough_once_who_runs_goes_first_keeps_all_who_run() -> None:
    long_context = MACHINE._replace(
        iteration=IterationTime(host_ms=100.0, linear_ms=((1.0, 0.001), (51.0, 0.002)), kv_ms=0.01),
        seqs_max=3,
        kv_blocks=4000,
        free_blocks=4000,
    )
    inside = readers(2, rate=1.0, read_end_s=1.5, prompt=100)
    inside += [replace(row, id="long", prompt=20_000) for row in readers(1, rate=1.0, read_end_s=1.5)]
    waiting = {"generated": 0, "read_end_s": None, "arrival_s": -1.0, "prompt": 10}
    fast = readers(1, Place.OUTSIDE, rate=20.0, ttft_s=0.5, **waiting)
    run = Unified().decide(view(*inside, *fast, machine=long_context, pace=SHORT_PROMPTS)).run
    assert set(run) == {row.id for row in inside}
