"""Annealing as a batch policy: what it reads of a view, and what it hands over."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from benchmarks.annealing_cases import V100
from qlm.agents.batching.policies.annealing.jobs import jobs_of
from qlm.agents.batching.policies.annealing.policy import ORDERED_MAX, Annealing, Mode
from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Place
from qlm.domain.errors import InvalidValueError
from support.batch_views import MACHINE, Row, view

ONE = MACHINE._replace(seqs_max=1)
TWO = MACHINE._replace(seqs_max=2)


def faithful(**options: object) -> Annealing:
    return Annealing(Mode.FAITHFUL, equations=V100, **options)  # type: ignore[arg-type]


def continuous() -> Annealing:
    return Annealing(Mode.CONTINUOUS, equations=V100)


def row(name: str, tokens: float, **changed: object) -> Row:
    """Return a request that waits, with so many tokens to come: 16.4 ms each alone."""
    return replace(Row(name, left_mean=tokens, prompt=10), **changed)  # type: ignore[arg-type]


def test_it_takes_first_what_is_due_first_and_then_what_is_short() -> None:
    waiting = (row("long", 300), row("short", 60), row("due", 120, deadline_s=2.5))
    assert continuous().decide(view(*waiting, machine=ONE)).run == ("due", "short", "long")
    assert faithful().decide(view(*waiting, machine=ONE)).run == ("due",)


def test_a_batch_is_left_alone_until_all_of_it_have_ended() -> None:
    policy = faithful()
    rows = [row("a", 100), row("b", 110), row("c", 300)]
    assert set(policy.decide(view(*rows, machine=TWO)).run) == {"a", "b"}
    running = [replace(each, place=Place.INSIDE) for each in rows[:2]]
    assert set(policy.decide(view(*running, rows[2], machine=TWO)).run) == {"a", "b"}
    preempted = (running[0], rows[1])
    assert policy.decide(view(*preempted, rows[2], machine=TWO)).run == ("a", "b"), "it comes back"
    assert policy.decide(view(rows[1], rows[2], machine=TWO)).run == ("b",), "it is of the batch still"
    assert policy.decide(view(rows[2], row("d", 5), machine=TWO)).run == ("c", "d"), "the next batch"


def test_a_new_policy_lets_end_what_it_finds_running() -> None:
    there = view(row("a", 100, place=Place.INSIDE), row("b", 5), machine=TWO)
    assert faithful().decide(there).run == ("a",)
    assert continuous().decide(there).run == ("a", "b")


def test_the_whole_order_starts_with_what_runs_and_preempts_none() -> None:
    rows = (
        row("new", 5),
        row("held", 9, place=Place.HELD),
        row("old", 900, place=Place.INSIDE, arrival_s=-1),
    )
    assert continuous().decide(view(*rows, machine=TWO)).run == ("old", "held", "new")


def test_full_slots_delay_what_waits() -> None:
    # Alone it would be in time; behind the 200 tokens of the one that runs it is not: the other goes first.
    rows = (row("tight", 100, deadline_s=2.0), row("short", 40, arrival_s=0.1))
    assert continuous().decide(view(*rows, machine=ONE)).run == ("tight", "short")
    busy = (row("runs", 200, place=Place.INSIDE), *rows)
    assert continuous().decide(view(*busy, machine=ONE)).run == ("runs", "short", "tight")


def test_batches_are_as_small_as_objectives_need() -> None:
    # In one batch both take longer: too long for the first, and one by one both are in time.
    rows = (row("a", 100, deadline_s=1.69), row("b", 100, deadline_s=9.0))
    assert faithful().decide(view(*rows, machine=TWO)).run == ("a",)
    loose = (replace(rows[0], deadline_s=5.0), rows[1])
    assert faithful(early_stop=False).decide(view(*loose, machine=TWO)).run == ("a", "b")


@pytest.mark.parametrize("batch_max", [1, 3])
def test_batches_keep_to_their_limit(batch_max: int) -> None:
    rows = [row(f"r{n}", 100) for n in range(9)]
    assert len(faithful(batch_max=batch_max).decide(view(*rows)).run) == batch_max
    with pytest.raises(InvalidValueError, match="batch_max"):
        Annealing(batch_max=0)


def test_a_batch_takes_nine_tenths_of_the_kv_cache_and_one_request_alone_runs_anyway() -> None:
    small = MACHINE._replace(kv_blocks=50)  # 800 tokens
    rows = [row(f"r{n}", 160) for n in range(9)]
    assert len(faithful().decide(view(*rows, machine=small)).run) == 4
    assert len(faithful().decide(view(*(replace(r, left_mean=9e3) for r in rows), machine=small)).run) == 1


def test_objectives_become_latest_starts() -> None:
    rows = (
        row("deadline", 100, deadline_s=7.0),
        row("reader", 100, ttft_s=2.0, rate=10.0, arrival_s=-1.0),
        row("first", 100, ttft_s=2.0, rate=FIRST_TOKEN_ONLY),
        row("both", 100, ttft_s=2.0, rate=10.0, deadline_s=1.8),
        row("none", 100),
        row("quick", 100, ttft_s=2.0, rate=90.0),
        row("resumed", 100, ttft_s=2.0, rate=10.0, generated=5),
        row("idled", 100, ttft_s=2.0, rate=10.0, generated=5, late_s=0.1),
    )
    jobs = jobs_of(view(*rows), np.arange(len(rows)), V100, batch_max=1)
    prefill_s, e2e_s = 50.47 / 1e3, jobs.e2e_s[0, 0]
    assert jobs.latest_s[0] == pytest.approx(
        [7 - e2e_s, 1 - prefill_s, 2 - prefill_s, 1.8 - e2e_s, inf, -inf, inf, -inf]
    )
    assert jobs.waited_s == 1.0


def test_equal_views_give_equal_decisions_and_the_generator_is_an_argument() -> None:
    rng = np.random.default_rng(8)
    rows = [
        row(f"r{n}", float(rng.integers(20, 900)), deadline_s=float(rng.uniform(1, 20))) for n in range(30)
    ]
    same = view(*rows, machine=TWO)
    runs = [Annealing(Mode.CONTINUOUS, rng=np.random.default_rng(s)).decide(same).run for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    policy = continuous()
    assert policy.decide(same) == policy.decide(same)


def test_what_the_search_does_not_see_waits_behind_it() -> None:
    rows = [row(f"r{n}", 100, arrival_s=float(n)) for n in range(ORDERED_MAX + 5)]
    run = continuous().decide(view(*rows, machine=TWO, now_s=200.0)).run
    assert len(run) == len(rows)
    assert run[ORDERED_MAX:] == tuple(f"r{n}" for n in range(ORDERED_MAX, ORDERED_MAX + 5))


def test_there_is_room_for_a_pool_to_order() -> None:
    policy = faithful()
    assert policy.room(view(machine=TWO)) == 2 + ORDERED_MAX
    assert policy.room(view(row("a", 5), machine=TWO)) == 1 + ORDERED_MAX
    assert policy.room(view(*(row(f"r{n}", 5) for n in range(200)), machine=TWO)) == 0


@pytest.mark.parametrize("name", ["annealing", "annealing-continuous"])
def test_the_registry_makes_policies_that_know_their_engine(name: str) -> None:
    policy = batch_policy(name)
    assert policy.decide(view()).run == ()
    assert policy.decide(view(row("a", 5), row("b", 9))).run == ("a", "b")
