"""The policy `unified` as a whole: on one view, and token by token."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import pytest

from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.policies.unified.policy import QUANTUM_S, Unified
from qlm.agents.batching.view import Machine, Place
from qlm.domain.streaming.reader import Reader
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_jobs import FIGURE_4, Job, Played, pace_of
from support.batch_toy import ToyEngine, constant
from support.batch_views import MACHINE, Row, view

FAST = MACHINE._replace(
    iteration=IterationTime(host_ms=0.0, linear_ms=((1.0, 20.0), (2_000.0, 220.0)), kv_ms=1e-4), kv_blocks=150
)
"""20 ms per iteration, 0.1 ms per token of a prompt, and blocks for about ten requests."""


def play(policy: str, machine: Machine, jobs: Sequence[Job]) -> ToyEngine:
    """Return the engine after a run of which the policy knows the mean lengths."""
    return ToyEngine(batch_policy(policy), machine, jobs, pace=pace_of(jobs)).play()


def figure_4(policy: str) -> list[Played]:
    """Return the four requests of Andes' figure 4 after a run: 400 tokens of KV, 0.2 s per iteration."""
    return list(play(policy, constant(0.2, kv_tokens=400), FIGURE_4).played.values())


def test_in_andes_figure_4_all_have_what_they_expect() -> None:
    by_arrival = figure_4("fcfs")
    assert [round(each.qoe, 3) for each in by_arrival] == [1.0, 1.0, 1.0, 0.909]
    requests = figure_4("unified")
    assert [each.qoe for each in requests] == [1.0] * 4
    assert sum(each.preemptions for each in requests) == 1


@pytest.mark.parametrize("host_blocks", [0, 10_000], ids=["recomputed", "from host memory"])
def test_a_burst_of_four_times_the_blocks_idles_less_than_half(host_blocks: int) -> None:
    jobs = [Job(str(number), prompt=100, answer=100, reader=Reader(1.0, 8.0)) for number in range(40)]
    idle_s, machine = {}, FAST._replace(host_blocks=host_blocks)
    for policy in ("fcfs", "unified"):
        requests = play(policy, machine, jobs).played.values()
        idle_s[policy] = sum(each.timeline.late_s for each in requests) / len(requests)
    assert idle_s["unified"] < idle_s["fcfs"] / 2


def overload(seed: int) -> list[Job]:
    """Return 300 readers, deadlines and batch requests, 1.4 times what the instance can serve."""
    rng, at_s, jobs = Random(seed), 0.0, []
    for number in range(300):
        at_s += rng.expovariate(7.0)
        kind, prompt, answer = rng.random(), rng.randint(20, 200), rng.randint(10, 200)
        reader, deadline_s = Reader(1.0, 5.0) if kind < 0.7 else None, at_s + 10 if 0.7 <= kind < 0.9 else inf
        jobs.append(Job(str(number), prompt, answer, at_s, reader, deadline_s))
    return jobs


def attained(requests: list[Played]) -> float:
    asked = [each for each in requests if each.job.reader or each.job.deadline_s < inf]
    met = sum(
        each.timeline.late_s == 0 if each.job.reader else each.end_s <= each.job.deadline_s for each in asked
    )
    return met / len(asked)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_overload_meets_more_objectives_and_does_not_livelock(seed: int) -> None:
    share, jobs = {}, overload(seed)
    for policy in ("fcfs", "unified"):
        requests = list(play(policy, FAST, jobs).played.values())
        share[policy] = attained(requests)
    assert share["unified"] > share["fcfs"] + 0.5
    assert sum(each.preemptions for each in requests) < 2 * len(requests)
    assert max(each.preemptions for each in requests) < 25


def test_a_reader_with_enough_unread_yields_to_a_new_one_and_comes_back() -> None:
    slots = MACHINE._replace(seqs_max=1, iteration=IterationTime.constant(50.0))
    jobs = [
        Job("rich", prompt=50, answer=100, reader=Reader(1.0, 5.0)),
        Job("new", prompt=50, answer=20, arrival_s=2.0, reader=Reader(1.0, 5.0)),
    ]
    rich, new = play("unified", slots, jobs).played.values()
    assert rich.preemptions == 1
    assert rich.timeline.late_s == new.timeline.late_s == 0
    assert new.end_s < rich.end_s


def test_a_deadline_that_runs_is_never_preempted_for_a_reader() -> None:
    slots = MACHINE._replace(seqs_max=1, iteration=IterationTime.constant(50.0))
    jobs = [
        Job("timed", prompt=50, answer=100, deadline_s=60.0),
        Job("reader", prompt=50, answer=20, arrival_s=1.0, reader=Reader(1.0, 5.0)),
    ]
    timed, _ = play("unified", slots, jobs).played.values()
    assert timed.preemptions == 0 and timed.end_s == pytest.approx(5.0)


def test_batch_work_fills_what_the_others_leave() -> None:
    two = MACHINE._replace(kv_blocks=16)  # of 100 tokens and growth: 8 blocks each
    rows = [Row("batch", Place.INSIDE), Row("more", Place.INSIDE), Row("reader", rate=5.0, ttft_s=0.5)]
    assert Unified().decide(view(*rows, machine=two)).run == ("reader", "batch")
    assert Unified().decide(view(*rows[:2], machine=two)).run == ("batch", "more")


def test_the_rank_orders_who_is_let_in_not_who_runs() -> None:
    one = MACHINE._replace(kv_blocks=8)
    timed = [Row("worse", rank=2, deadline_s=50.0), Row("better", rank=1, deadline_s=60.0)]
    assert Unified().decide(view(*timed, machine=one)).run == ("better",)
    running = [Row("runs", Place.INSIDE, rank=2, deadline_s=50.0), timed[1]]
    assert Unified().decide(view(*running, machine=one)).run == ("runs",)


def test_a_slow_link_recomputes_who_comes_in() -> None:
    copied: dict[str, Any] = {"prompt": 100, "generated": 20, "host_tokens": 120, "rate": 5.0, "ttft_s": 1.0}
    row = Row("a", read_end_s=0.5, **copied)
    assert Unified().decide(view(row, machine=FAST)).recompute == frozenset()
    slow = FAST._replace(link_bytes_per_s=1e8)
    assert Unified().decide(view(row, machine=slow)).recompute == {"a"}


def test_it_decides_again_after_a_quantum_while_some_wait_and_else_when_blocks_end() -> None:
    one = MACHINE._replace(kv_blocks=8)
    assert Unified().decide(view(Row("a"), Row("b"), machine=one)).again_s == QUANTUM_S
    # 993 blocks of 16 tokens, at 20 ms per token.
    assert Unified().decide(view(Row("a", Place.INSIDE))).again_s == pytest.approx(993 * 16 * 0.02)
    assert Unified().decide(view()).run == ()


def test_there_is_room_for_as_many_paces_as_the_capacity_serves() -> None:
    few = MACHINE._replace(seqs_max=2)
    readers = [Row(name, Place.INSIDE, rate=10.0, ttft_s=1.0) for name in "ab"]
    # Two slots at 20 ms: 100 tokens per second, of which two readers take 20.
    assert Unified().room(view(*readers, machine=few)) == 8
    assert Unified(admission_share=0.5).room(view(*readers, machine=few)) == 3
    assert batch_policy("fcfs").room(view(*readers, machine=few)) == 0
    # Without members, readers of 4.8 tokens per second; batch work that waits takes a place.
    assert Unified().room(view(machine=few)) == 20
    assert Unified().room(view(Row("batch"), machine=few)) == 19
    assert Unified().room(view(*readers, machine=few._replace(seqs_max=20))) >= 18
