"""The search against its referee, and what it promises by itself."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.annealing_cases import drawn, searched_cases
from qlm.agents.batching.policies.annealing.compiling import can_compile
from qlm.agents.batching.policies.annealing.jobs import Jobs
from qlm.agents.batching.policies.annealing.search import Schedule, Search, in_order, solution
from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.goodput import latency_goodput
from support.annealing_exhaustive import exhaustive

INF = float("inf")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def toy(**changed: Any) -> Jobs:
    """Jobs of 2, 3 and 4 s, due after 9, 3 and 7 s, one at a time."""
    took = np.array([[2.0, 3.0, 4.0]])
    jobs = Jobs(took, np.array([[9.0, 3.0, 7.0]]) - took, np.ones(3), INF)
    return jobs._replace(**changed)


def test_the_toy_of_three_jobs() -> None:
    assert in_order(toy(), (0, 1, 2)).value == pytest.approx(1 / 16)
    best = Search(rng())(toy())
    assert best.batches == ((1,), (2,), (0,))
    assert (best.met, best.latency_s) == (3, 19.0)
    assert best.value == pytest.approx(3 / 19)
    assert exhaustive(toy()) == best


def test_what_has_been_waited_counts_and_moves_the_optimum() -> None:
    # A start of 1 s makes the job of 3 s impossible to meet: then the shortest first costs nothing.
    late = toy(begin_s=1.0, waited_s=6.0)
    assert exhaustive(late).latency_s == Search(rng())(late).latency_s
    assert solution(late, ((0,), (1,), (2,))).latency_s == 6.0 + 3.0 + 6.0 + 10.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_the_early_stop_all_but_a_few_are_within_one_percent_of_exhaustive(seed: int) -> None:
    cases = searched_cases(200, seed)
    assert {jobs.batch_max for jobs in cases} >= {1, 2, 4}
    search = Search(rng(seed), early_stop=False)
    gaps = [1 - search(jobs).value / exhaustive(jobs).value for jobs in cases]
    assert sum(gap > 0.01 for gap in gaps) <= 3
    assert sum(gaps) / len(gaps) < 0.002


def test_with_the_early_stop_it_can_be_far_from_it() -> None:
    gaps = [1 - Search(rng())(jobs).value / exhaustive(jobs).value for jobs in searched_cases(120, 1, most=6)]
    assert 0.05 < max(gaps) < 0.25


def test_the_early_stop_is_right_with_batches_of_one() -> None:
    # All objectives met in order of latency: the proof of section 4.3.
    jobs = drawn(rng(3), 7, tightness=9.0).jobs(1)
    stopped = Search(rng())(jobs)
    assert stopped.met == 7
    assert stopped.value == pytest.approx(exhaustive(jobs).value)


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
@pytest.mark.parametrize("batch_max", [1, 3, 64])
@pytest.mark.parametrize("room", [INF, 900.0, 1.0])
def test_compiled_and_interpreted_searches_give_the_same_bits(batch_max: int, room: float) -> None:
    compiled, plain = (Search(rng(2), early_stop=False, compiled=flag) for flag in (True, False))
    for count in (1, 2, 5, 17):
        jobs = drawn(rng(count), count, tightness=0.4).jobs(batch_max)._replace(room=room)
        assert compiled(jobs) == plain(jobs)


def test_equal_jobs_give_equal_solutions_whatever_was_searched_before() -> None:
    jobs, other = (drawn(rng(seed), 12, tightness=0.3).jobs(4) for seed in (1, 2))
    search = Search(rng(5))
    first = search(jobs)
    search(other)
    assert search(jobs) == first == Search(rng(5))(jobs)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 12),
    batch_max=st.integers(1, 6),
    room=st.sampled_from([1.0, 400.0, 1500.0, INF]),
    seed=st.integers(0, 99),
)
def test_a_solution_has_each_job_once_within_all_limits_and_is_no_worse_than_its_starts(
    count: int, batch_max: int, room: float, seed: int
) -> None:
    jobs = drawn(rng(seed), count, tightness=0.3).jobs(batch_max)._replace(room=room)
    found = Search(rng(), early_stop=False, compiled=can_compile())(jobs)
    assert sorted(job for batch in found.batches for job in batch) == list(range(count))
    for batch in found.batches:
        assert 1 <= len(batch) <= batch_max
        assert len(batch) == 1 or jobs.tokens[list(batch)].sum() <= room
    assert found.value >= in_order(jobs, range(count)).value
    assert found == solution(jobs, found.batches)


def test_the_value_is_g_of_what_the_batches_take() -> None:
    jobs = drawn(rng(1), 6, tightness=0.2).jobs(2)
    found = solution(jobs, ((3, 1), (0,), (5, 2), (4,)))
    start_s, ends = 0.0, []
    for batch in found.batches:
        row = len(batch) - 1
        ends += [(start_s + jobs.e2e_s[row, j], bool(start_s <= jobs.latest_s[row, j])) for j in batch]
        start_s += max(jobs.e2e_s[row, j] for j in batch)
    assert found.value == pytest.approx(latency_goodput(ends))


def test_none_in_time_still_gives_the_order_of_least_latency() -> None:
    jobs = drawn(rng(1), 5).jobs(1)
    never = jobs._replace(latest_s=np.full_like(jobs.latest_s, -INF))
    found = Search(rng())(never)
    assert found.met == 0
    assert found.latency_s == pytest.approx(exhaustive(never).latency_s)


def test_the_referee_is_right_by_enumeration() -> None:
    for seed in range(9):
        jobs = drawn(rng(seed), 5, tightness=0.2).jobs(3)._replace(room=(INF, 700.0)[seed % 2])
        assert exhaustive(jobs).value == pytest.approx(max(_values(jobs)), rel=1e-12)


def _values(jobs: Jobs) -> Iterator[float]:
    for order in permutations(range(5)):
        for cuts in range(1 << 4):
            batches: list[list[int]] = [[]]
            for at, job in enumerate(order):
                batches[-1].append(job)
                if cuts >> at & 1:
                    batches.append([])
            fits = (len(b) == 1 or jobs.tokens[b].sum() <= jobs.room for b in batches)
            if max(map(len, batches)) <= jobs.batch_max and all(fits):
                yield solution(jobs, batches).value


def test_the_referee_refuses_what_would_take_for_ever() -> None:
    with pytest.raises(InvalidValueError, match="at most 10"):
        exhaustive(drawn(rng(), 11).jobs(1))


def test_the_schedule_is_the_one_of_the_paper() -> None:
    schedule = Schedule.drawn(rng())
    assert len(schedule.temperatures) == 6_300
    assert schedule.temperatures[0] == 500.0
    assert 20.0 <= schedule.temperatures[-1] < 20.0 / 0.95
