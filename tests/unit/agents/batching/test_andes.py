"""Andes: its toy examples, quality and gains, triggers, batch sizes and cap."""

import numpy as np
import pytest

from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.andes.gains import Objective, gains
from qlm.agents.batching.policies.andes.greedy import best_batch
from qlm.agents.batching.policies.andes.policy import Andes
from qlm.agents.batching.policies.andes.quality import Delivered, Horizon, delivered, served
from qlm.agents.batching.policies.andes.sizes import batch_sizes
from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.readership import readership
from qlm.agents.batching.step_time import StepTime
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Place
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_jobs import FIGURE_4
from support.batch_toy import ToyEngine, constant
from support.batch_views import MACHINE, PACE, Row, view

FULL = MACHINE._replace(kv_blocks=20)
SLOW = IterationTime(host_ms=0.0, linear_ms=((1, 1e-6),), kv_ms=0.0, sequence_ms=10.0)


def _figure_4(policy: str | Andes) -> ToyEngine:
    chosen = batch_policy(policy) if isinstance(policy, str) else policy
    return ToyEngine(chosen, constant(0.2, kv_tokens=400), FIGURE_4, pace=PACE).play()


def test_figure_4_first_come_first_served_lets_request_4_wait() -> None:
    played = _figure_4("fcfs").played
    assert [played[name].qoe for name in "1234"] == pytest.approx([1.0, 1.0, 1.0, 10 / 11])


@pytest.mark.parametrize("policy", [Andes(), Andes(stay_s=0.0, quantum_s=0.0)])
def test_figure_4_andes_serves_all_perfectly_with_one_preemption(policy: Andes) -> None:
    played = _figure_4(policy).played
    assert [played[name].qoe for name in "1234"] == pytest.approx([1.0] * 4)
    assert [played[name].preemptions for name in "1234"] == [0, 0, 1, 0]


def _readers(*rows: Row, now_s: float = 0.0) -> tuple[Horizon, Delivered]:
    shown = view(*rows, now_s=now_s)
    readers = readership(shown)
    return Horizon(readers, now_s), delivered(readers, shown.generated)


def test_quality_is_what_was_digested_over_what_would_have_been() -> None:
    # 10 tokens at 2 per second, due from 1 s on, of 20 in all. At 8 s: read at 6 s, and 14 were due.
    read = Row("a", rate=2.0, ttft_s=1.0, generated=10, left_mean=10.0)
    horizon, given = _readers(read, now_s=8.0)
    wanted, digested = 14 * 7 - 14**2 / 4, 10 * 7 - 10**2 / 4
    assert horizon.quality(given) == pytest.approx([digested / wanted])


def test_quality_counts_lateness_and_what_is_unread() -> None:
    # Two seconds late from the first token on; at 5 s four of the ten tokens are read.
    late = Row("a", rate=2.0, ttft_s=1.0, generated=10, left_mean=10.0, late_s=2.0, late_sum_s=20.0)
    horizon, given = _readers(late, now_s=5.0)
    assert horizon.quality(given) == pytest.approx([(4 * 2 - 4**2 / 4) / (8 * 4 - 8**2 / 4)])


def test_what_is_served_grows_late_where_iterations_are_slower_than_the_reader() -> None:
    # From 1 s on a token each 0.5 s for a reader of 4 per second who expects the first one at 1.5 s.
    shown = view(Row("a", rate=4.0, ttft_s=1.5, left_mean=100.0))
    readers = readership(shown)
    given = served(readers, delivered(readers, shown.generated), np.array([1.0]), np.array([[0.5]]), 6.0)
    assert given.tokens == pytest.approx(np.array([[10.0]]))
    assert given.late_s == pytest.approx(np.array([[2.5]]))
    # The lateness of tokens 0 to 9 is 0, 0.25, ...; as an area, up to 10, it is 12.5.
    assert given.late_sum_s == pytest.approx(np.array([[12.5]]))


def _gains(*rows: Row, objective: Objective, now_s: float = 10.0, dt_s: float = 10.0) -> list[float]:
    shown = view(*rows, now_s=now_s)
    gain = gains(shown, readership(shown), np.array([0.02]), dt_s, objective)
    return [float(each) for each in gain[0]]


NEW = Row("new", arrival_s=10.0, rate=5.0, ttft_s=1.0)
AHEAD_OF_READER = Row("full", place=Place.INSIDE, generated=200, rate=5.0, ttft_s=1.0, left_mean=100.0)
LATE = Row("late", arrival_s=0.0, rate=5.0, ttft_s=1.0, left_mean=100.0)


def test_a_new_request_gains_all_and_one_with_a_full_buffer_nothing() -> None:
    assert _gains(NEW, AHEAD_OF_READER, objective=Objective.AVERAGE) == pytest.approx([1.0, 0.0], abs=0.01)


def test_the_lowest_quality_gains_what_waiting_would_take_from_it() -> None:
    # Equation 6: the lowest quality is that of the one that waits since 0 s, and cannot fall.
    assert _gains(NEW, AHEAD_OF_READER, objective=Objective.MAX_MIN) == [1.0, 0.0]
    assert _gains(NEW, LATE, objective=Objective.MAX_MIN) == [0.0, 0.0]


def test_only_requests_that_can_stay_perfect_count_for_the_perfect_count() -> None:
    # Equation 7.
    assert _gains(NEW, AHEAD_OF_READER, LATE, objective=Objective.PERFECT_COUNT) == [1.0, 0.0, 0.0]


def test_a_deadline_is_a_slow_reader_and_a_batch_request_none() -> None:
    deadline = Row("deadline", arrival_s=10.0, deadline_s=30.0, left_mean=100.0)
    first_only = Row("first", arrival_s=10.0, rate=FIRST_TOKEN_ONLY, ttft_s=1.0)
    gained = _gains(deadline, first_only, Row("batch"), objective=Objective.AVERAGE)
    assert gained[0] > 0.9 and gained[1] > 0.9 and gained[2] == 0.0
    readers = readership(view(deadline))
    assert (readers.rate[0], readers.first_due_s[0]) == pytest.approx((5.0, 10.2))


@pytest.mark.parametrize(
    ("memory", "size", "best"), [(400, 2, {1, 3}), (420, 3, {1, 2, 3})], ids=["two of 400", "three of 420"]
)
def test_the_knapsack_toy_is_packed_by_gain_per_length(memory: int, size: int, best: set[int]) -> None:
    lengths, gain = (300, 100, 200, 120), np.array([[0.9, 0.5, 0.8, 0.6]])
    machine = constant(0.2, kv_tokens=memory)
    # A row takes its next token too.
    shown = view(*(Row(str(row), prompt=length - 1) for row, length in enumerate(lengths)), machine=machine)
    rows, priority = best_batch(shown, Packing(shown, growth_blocks=0), [size], gain)
    assert set(rows.tolist()) == best
    assert np.argsort(-priority).tolist() == [1, 3, 2, 0]


def test_everything_runs_while_nothing_limits_the_batch() -> None:
    rows = [Row("a"), Row("b"), Row("in", place=Place.INSIDE)]
    decision = Andes().decide(view(*rows))
    assert decision.run == ("in", "a", "b")
    assert decision.again_s == pytest.approx(0.1)


def test_without_a_waiting_request_the_next_decision_is_when_memory_may_be_short() -> None:
    # 7 of 1000 blocks are used by one request: 900 - 7 more, less one, of 16 tokens at 20 ms.
    decision = Andes().decide(view(Row("in", place=Place.INSIDE)))
    assert decision.again_s == pytest.approx((900 - 7 - 1) * 16 * 0.02)


def _one_in_one_new() -> list[Row]:
    # 19 of 20 blocks are taken; the new one needs 7.
    return [
        Row("full", place=Place.INSIDE, prompt=160, generated=140, rate=5.0, ttft_s=1.0, left_mean=200.0),
        Row("new", arrival_s=10.0, rate=5.0, ttft_s=1.0),
    ]


def test_full_memory_lets_the_new_request_preempt_one_with_a_buffer() -> None:
    decision = Andes(stay_s=0.0).decide(view(*_one_in_one_new(), now_s=10.0, machine=FULL))
    assert decision.run == ("new",)


def test_the_cap_on_preemptions_keeps_who_runs() -> None:
    spent = PACE._replace(preemptions=2, requests=2)
    decision = Andes(stay_s=0.0).decide(view(*_one_in_one_new(), now_s=10.0, machine=FULL, pace=spent))
    assert decision.run == ("full",)


def test_a_request_stays_for_a_while_once_it_is_admitted() -> None:
    policy, rows = Andes(stay_s=1.0), _one_in_one_new()
    policy.decide(view(rows[0], now_s=9.5, machine=FULL))
    assert policy.decide(view(*rows, now_s=10.0, machine=FULL)).run == ("full",)
    assert policy.decide(view(*rows, now_s=10.6, machine=FULL)).run == ("new",)


def test_a_pinned_request_is_never_preempted() -> None:
    rows = _one_in_one_new()
    rows[0].pinned = True
    assert Andes(stay_s=0.0).decide(view(*rows, now_s=10.0, machine=FULL)).run == ("full",)


def test_batch_sizes_reach_from_the_largest_faster_than_all_readers_to_the_most_that_fit() -> None:
    # 10 ms per request: up to 19 are faster than 5 tokens per second; 40 of one block and one to grow fit.
    time = StepTime(SLOW, context=0.0)
    machine = MACHINE._replace(kv_blocks=80)
    assert batch_sizes(np.ones(60, np.int64), machine, time, 5.0) == [40, 29, 19]
    assert batch_sizes(np.ones(60, np.int64), machine, time, 1.0) == [40]
    assert batch_sizes(np.ones(60, np.int64), machine, time, 1000.0) == [40, 21, 1]


def test_slow_iterations_serve_fewer_requests_so_that_some_keep_their_pace() -> None:
    machine = MACHINE._replace(iteration=SLOW, kv_blocks=10_000)
    rows = [
        Row(str(row), place=Place.INSIDE, prompt=15, generated=1, rate=5.0, ttft_s=0.5, read_end_s=0.7)
        for row in range(60)
    ]
    chosen = Andes(stay_s=0.0).decide(view(*rows, now_s=1.0, machine=machine, pace=PACE._replace(step_s=0.6)))
    assert 19 <= len(chosen.run) < 60
