"""Deadlines in an overload: which are met together, and what they leave to readers."""

from itertools import combinations
from math import inf

import numpy as np
import pytest

from qlm.agents.batching.policies.unified.deadlines import crowded_out, met_together
from qlm.agents.batching.policies.unified.demands import demands
from qlm.agents.batching.policies.unified.members import members
from qlm.agents.batching.policies.unified.policy import Unified
from qlm.agents.batching.view import Floats, Place, View
from support.batch_views import MACHINE, Row, reader, view

SLOTS = 2


def overloaded(*more: Row, deadlines: int = 20) -> View:
    """Return equal requests that are all due in 30 s, and others."""
    rows = [Row(f"d{number}", deadline_s=30.0) for number in range(deadlines)]
    return view(*rows, *more, machine=MACHINE._replace(seqs_max=SLOTS))


def in_time(within_s: Floats, work_s: Floats, rows: tuple[int, ...]) -> bool:
    by_deadline = sorted(rows, key=lambda row: within_s[row])
    ends_s = np.cumsum(work_s[by_deadline])
    return bool((ends_s <= within_s[by_deadline]).all())


@pytest.mark.parametrize("seed", range(60))
def test_no_other_choice_meets_more_deadlines(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 9))
    within_s, work_s = rng.uniform(1, 10, count), rng.choice([0.5, 1.0, 2.0, 5.0], count)
    met = tuple(np.flatnonzero(met_together(within_s, work_s, np.zeros(count, np.bool_))).tolist())
    assert in_time(within_s, work_s, met)
    larger = combinations(range(count), len(met) + 1)
    assert not any(in_time(within_s, work_s, rows) for rows in larger)


def test_of_equal_requests_the_first_are_kept() -> None:
    assert met_together(np.full(4, 2.5), np.ones(4), np.zeros(4, np.bool_)).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_while_the_capacity_has_room_no_deadline_yields() -> None:
    seen = overloaded()
    needs = demands(seen)
    paces = float(needs.pace.sum())
    part = np.isfinite(needs.slack_s)
    assert not crowded_out(seen, needs, part, paces).any()
    # 30 s of a little less than all paces: 20 answers on the safe side are 30 of the expected length.
    assert not crowded_out(seen, needs, part, paces * 0.99).any()
    assert crowded_out(seen, needs, part, paces * 0.5).sum() == 5


def test_deadlines_keep_their_share_beside_readers() -> None:
    readers = [reader(f"r{number}", 0.5, rate=5.0) for number in range(20)]
    seen = overloaded(*readers)
    needs = demands(seen)
    part = np.isfinite(needs.slack_s)
    # Paces of 100 and 100: of 122 tokens per second, 61 go to deadlines, 18 answers of 100 in 30 s.
    assert needs.pace[:20].sum() == needs.pace[20:].sum() == pytest.approx(100.0)
    assert crowded_out(seen, needs, part, 122.0).sum() == 2
    assert crowded_out(seen, needs, part, 64.0).sum() == 11
    assert not crowded_out(seen, needs, part, 64.0)[20:].any()


def test_who_yields_is_best_effort_and_comes_in_where_a_slot_is_free() -> None:
    few = overloaded(deadlines=3)
    assert len(Unified().decide(few).run) == SLOTS
    seen = overloaded(deadlines=200)
    needs = demands(seen)
    kept = members(seen, needs, 100.0, inf)
    assert kept.tolist() == [True] * 30 + [False] * 170


@pytest.mark.parametrize("overload", [1.01, 2.0, 10.0])
@pytest.mark.parametrize("left", [5.0, 60.0])
def test_one_that_runs_is_kept_for_the_work_that_is_done(overload: float, left: float) -> None:
    runs = Row("runs", Place.INSIDE, generated=95, deadline_s=2.0, left_mean=left)
    rows = [runs, *(Row(f"d{number}", deadline_s=3.0) for number in range(10))]
    for more in (rows[1:], [reader(f"r{number}", 0.5, rate=5.0) for number in range(40)]):
        seen = view(runs, *more, machine=MACHINE._replace(seqs_max=SLOTS))
        needs = demands(seen)
        out = crowded_out(seen, needs, np.isfinite(needs.slack_s), needs.pace.sum() / overload)
        assert not out[0]


def test_what_runs_takes_the_time_of_others() -> None:
    within_s, work_s = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.5, 1.5])
    assert met_together(within_s, work_s, np.array([True, False, False])).tolist() == [True, False, False]
    assert met_together(within_s, work_s, np.zeros(3, np.bool_)).tolist() == [False, True, True]


@pytest.mark.parametrize("overload", [1.4, 1.6, 3.0, 20.0])
def test_a_lone_deadline_among_many_readers_is_served(overload: float) -> None:
    seen = view(Row("d", deadline_s=30.0), *(reader(f"r{number}", 0.5, rate=5.0) for number in range(40)))
    needs = demands(seen)
    part = np.isfinite(needs.slack_s)
    assert not crowded_out(seen, needs, part, needs.pace.sum() / overload).any()
