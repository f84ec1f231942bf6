"""TokenFlow: its toy example, equations 3 to 6, and the rules around them."""

from math import exp

import numpy as np
import pytest

from qlm.agents.batching.policies.tokenflow.balance import balanced
from qlm.agents.batching.policies.tokenflow.candidates import Candidates, candidates
from qlm.agents.batching.policies.tokenflow.options import Options, Unit
from qlm.agents.batching.policies.tokenflow.policy import DEFAULTS, TokenFlow
from qlm.agents.batching.policies.tokenflow.working_set import (
    admitted,
    least_buffers_s,
    may_yield,
    schedulable,
    working_set_max,
)
from qlm.agents.batching.step_time import capacity_tokens_per_s
from qlm.agents.batching.view import Machine, Pace, Place
from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.reader import Reader
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_jobs import Job
from support.batch_toy import ToyEngine, constant
from support.batch_views import MACHINE, PACE, Row, view

FIGURE_6 = [
    Job("R1", prompt=10, answer=2000, reader=Reader(0.0, 20.0)),
    Job("R2", prompt=10, answer=2000, reader=Reader(0.0, 30.0)),
    Job("R3", prompt=10, answer=2000, reader=Reader(0.0, 25.0), arrival_s=2.0),
]
"""The three requests of the paper's figure 6, on two batch slots of 40 tokens per second each."""

FAST = IterationTime.constant(10.0)
LOADED = MACHINE._replace(host_blocks=1000, link_bytes_per_s=1e9, token_bytes=1_000_000)


@pytest.mark.parametrize("unit", Unit)
def test_figure_6_readers_take_turns(unit: Unit) -> None:
    # The third is let in at 3 s and not at 2 s: R1 may yield once its buffer lasts 2.5 s.
    policy = TokenFlow(Options(conservativeness=2.5, phi_unit=unit))
    buffers: dict[int, dict[str, int]] = {}
    running: dict[int, set[str]] = {}

    def watch(engine: ToyEngine) -> None:
        second = round(engine.now_s)
        if abs(engine.now_s - second) < 1e-6:
            shown = engine.view()
            unread = np.maximum(0, shown.read_end_s - engine.now_s) * shown.rate
            buffers[second] = dict(zip(shown.ids, unread.round().astype(int).tolist(), strict=True))

    engine = ToyEngine(policy, constant(0.025, kv_tokens=40_000, seqs_max=2), FIGURE_6, pace=PACE)
    engine.play(6.9, watch=watch)
    for at_s, decision in engine.decisions:
        running[round(at_s)] = set(decision.run)
    assert buffers[2]["R1"] == pytest.approx(40, abs=1) and buffers[2]["R2"] == pytest.approx(20, abs=1)
    assert buffers[3]["R1"] == pytest.approx(60, abs=1) and buffers[3]["R2"] == pytest.approx(30, abs=1)
    assert running[3] == running[4] == {"R2", "R3"}
    assert [buffers[5][name] for name in ("R1", "R2", "R3")] == pytest.approx([20, 50, 30], abs=1)
    assert running[5] == {"R1", "R3"}
    assert [buffers[6][name] for name in ("R1", "R2", "R3")] == pytest.approx([40, 20, 45], abs=1)
    assert "R2" in running[6]


def _these(
    *rows: Row, options: Options = DEFAULTS, machine: Machine = MACHINE, pace: Pace = PACE
) -> Candidates:
    return candidates(view(*rows, now_s=10.0, machine=machine, pace=pace), options)


def _inside(name: str, *, buffer_s: float, rate: float = 5.0, generated: int = 100, **changed: object) -> Row:
    """Return a running request whose reader has that much to read at 10 s."""
    arrival_s = 10.0 + buffer_s - 1.0 - generated / rate
    return Row(name, place=Place.INSIDE, arrival_s=arrival_s, generated=generated, rate=rate, ttft_s=1.0,
               left_mean=900.0, **changed)  # type: ignore[arg-type]  # fmt: skip


def test_the_utility_is_the_gain_of_being_served_for_a_quantum() -> None:
    # Equation 3 in gain form: 50 tokens in a second of 20 ms iterations, all of weight 1, and phi of a buffer
    # that is 1 s without them, and 11 s with them.
    these = _these(_inside("a", buffer_s=2.0), options=Options(gamma=2.0))
    assert these.tokens == pytest.approx([50.0])
    assert these.utility == pytest.approx([50 + 2 * 50 * (exp(-1.0) - exp(-11.0))])


def test_phi_may_count_tokens_as_in_the_paper() -> None:
    these = _these(_inside("a", buffer_s=0.4), options=Options(phi_unit=Unit.TOKENS))
    assert these.phi == pytest.approx([exp(-2.0)])


def test_tokens_far_from_being_read_weigh_less() -> None:
    # Equation 1: of 1000 tokens, 100 unread weigh fully, 150 half, and 200 not at all.
    rows = [_inside(f"{buffer_s}", buffer_s=buffer_s, generated=300, rate=5.0) for buffer_s in (20, 30, 40)]
    for row in rows:
        row.left_mean = 700.0
    assert _these(*rows).tokens == pytest.approx([50.0, 25.0, 0.0])


def test_the_emptier_buffer_has_the_greater_utility() -> None:
    these = _these(_inside("empty", buffer_s=0.2), _inside("full", buffer_s=8.0))
    assert these.utility[0] > these.utility[1]


def test_the_time_to_restore_is_taken_off_the_quantum() -> None:
    # 101 tokens of 1 MB over 1 GB/s take 0.101 s, and the queue 0.3 s: 0.599 s are left of a second.
    out = Row("a", rate=5.0, ttft_s=1.0, prompt=60, generated=41, host_tokens=101, left_mean=900.0)
    machine = LOADED._replace(iteration=IterationTime.constant(1000.0), load_free_s=10.3)
    these = _these(out, machine=machine, pace=PACE._replace(step_s=0.0))
    assert these.restore.load_s == pytest.approx([0.401])
    assert these.restore.least_s == pytest.approx([0.401])
    assert these.tokens == pytest.approx([0.599])


def test_a_request_is_computed_again_where_the_link_is_busy() -> None:
    rows = [_inside(name, buffer_s=9.0, prompt=7800) for name in "ab"]
    rows.append(Row("out", arrival_s=5.0, rate=5.0, ttft_s=1.0, generated=41, host_tokens=141))
    # 14 ms to load, 20 ms to compute.
    machine = LOADED._replace(token_bytes=100_000)
    idle = TokenFlow().decide(view(*rows, now_s=10.0, machine=machine))
    busy = TokenFlow().decide(view(*rows, now_s=10.0, machine=machine._replace(load_free_s=12.0)))
    assert "out" in idle.run and not idle.recompute
    assert busy.recompute == {"out"}


def test_the_working_set_counts_host_memory() -> None:
    # Equation 4: a mean request takes (200 + 100 + 1) / 16, or 19 blocks; equation 5 below a full batch.
    rows = [_inside(f"{row}", buffer_s=5.0) for row in range(10)]
    machine = MACHINE._replace(kv_blocks=190, host_blocks=1_900)
    assert working_set_max(_these(*rows, machine=machine), Options()) == 110
    assert working_set_max(_these(*rows[:4], machine=machine), Options(reduction=0.5)) == 110 - 53
    without = machine._replace(host_blocks=0)
    assert working_set_max(_these(*rows, machine=without), Options()) == 40


def test_a_buffer_that_outlasts_the_switch_may_yield() -> None:
    # mu (tau_evict + tau_load + tau_schedule): 2 (0.2 + 0.2 + 1) for 200 tokens of 1 MB over 1 GB/s.
    these = _these(_inside("a", buffer_s=2.7), _inside("b", buffer_s=2.9), machine=LOADED)
    assert least_buffers_s(these, Options(conservativeness=2.0)) == pytest.approx([2.8, 2.8])
    assert may_yield(these, Options(conservativeness=2.0)).tolist() == [1]


def _admitted(*rows: Row, yielding: list[int], set_max: int = 10, capacity: float = 1e9) -> list[bool]:
    these = _these(*rows, machine=MACHINE._replace(kv_blocks=30, seqs_max=8))
    joined = admitted(these, these.inside, np.array(yielding, np.int64), set_max=set_max, capacity=capacity)
    return [bool(each) for each in joined]


def test_new_requests_join_for_the_blocks_of_those_who_may_yield() -> None:
    # Both inside take 13 blocks each, a new one 7 and one to grow: the free 4 do not do.
    inside = [_inside(name, buffer_s=9.0) for name in "ab"]
    new = [Row(name, arrival_s=2.0, rate=5.0, ttft_s=1.0) for name in ("first", "second")]
    assert _admitted(*inside, *new, yielding=[]) == [True, True, False, False]
    assert _admitted(*inside, *new, yielding=[0]) == [True, True, True, True]
    assert _admitted(*inside, *new, yielding=[0], set_max=3) == [True, True, True, False]
    assert _admitted(*inside, *new, yielding=[0], capacity=15.0) == [True, True, True, False]
    assert _admitted(*inside, Row("batch"), yielding=[0]) == [True, True, False]


def test_a_set_is_schedulable_while_its_readers_need_no_more_than_the_engine_generates() -> None:
    these = _these(_inside("a", buffer_s=1.0, rate=30.0), _inside("b", buffer_s=1.0, rate=20.0), Row("batch"))
    everyone = np.ones(3, np.bool_)
    assert schedulable(these, everyone, 50.0) and not schedulable(these, everyone, 49.0)


def test_capacity_counts_the_length_bias_of_answers_and_the_prompts() -> None:
    # Mean text 200 + 20000 / 200 = 300: 1000 blocks of 16 hold 50 of them, at 20 ms. A prompt of 200 of 2048
    # tokens takes 200 / 2048 of 20 ms.
    expected = 1 / (0.02 / 50 + 0.02 * 200 / 2048 / 100)
    assert capacity_tokens_per_s(view(now_s=0.0)) == pytest.approx(expected)


def test_beyond_capacity_requests_run_first_come_first_served() -> None:
    # Readers of 1000 tokens per second on 50 slots of one.
    slow = MACHINE._replace(iteration=IterationTime.constant(1000.0))
    rows = [_inside(name, buffer_s=at, rate=500.0, generated=5000) for name, at in (("a", 0.0), ("b", 9.0))]
    new = Row("new", arrival_s=-5.0, prompt=8000, rate=5.0, ttft_s=1.0)
    decision = TokenFlow().decide(view(*rows, new, now_s=10.0, machine=slow))
    assert decision.run == ("a", "b", "new")
    within = TokenFlow().decide(view(*rows, new, now_s=10.0, machine=slow._replace(iteration=FAST)))
    assert within.run == ("a", "new")


def test_an_adjacent_request_of_more_utility_replaces_one_that_would_run() -> None:
    # The one outside has the emptier buffer by a little, but takes most of the quantum to compute.
    machine = MACHINE._replace(iteration=IterationTime.constant(900.0), kv_blocks=15)
    out = Row("out", arrival_s=-10.1, generated=100, rate=5.0, ttft_s=1.0, left_mean=900.0)
    rows = [out, _inside("in", buffer_s=1.0)]
    these = _these(*rows, machine=machine, pace=PACE._replace(step_s=0.0))
    assert these.phi[0] > these.phi[1] and these.utility[0] < these.utility[1]
    assert balanced(these, np.ones(2, np.bool_), 1.0, 1e9).tolist() == [1]


def test_prompts_beyond_what_a_quantum_computes_wait_for_the_next_one() -> None:
    # 1000 of 2048 tokens take 0.24 s of iterations of 0.5 s: four in a second.
    machine = MACHINE._replace(iteration=IterationTime.constant(500.0), kv_blocks=10_000)
    rows = [Row(f"{row}", arrival_s=float(row), prompt=1000, rate=5.0, ttft_s=1.0) for row in range(8)]
    these = _these(*rows, machine=machine)
    assert balanced(these, np.ones(8, np.bool_), 1.0, 1e9).tolist() == [0, 1, 2, 3]


def test_between_two_quanta_no_request_yields() -> None:
    policy, machine = TokenFlow(), MACHINE._replace(kv_blocks=16)
    rows = [_inside("a", buffer_s=9.0), Row("new", arrival_s=10.0, rate=5.0, ttft_s=1.0)]
    assert policy.decide(view(*rows, now_s=10.0, machine=machine)).run == ("new",)
    policy = TokenFlow()
    short = _inside("a", buffer_s=1.0)
    first = policy.decide(view(short, rows[1], now_s=10.0, machine=machine))
    assert first.run == ("a", "new") and first.again_s == 11.0
    assert policy.decide(view(*rows, now_s=10.5, machine=machine)).run == ("a", "new")
    assert policy.decide(view(*rows, now_s=11.0, machine=machine)).run == ("new",)


@pytest.mark.parametrize(
    "options",
    [Options(quantum_s=0.4), Options(quantum_s=1.6), Options(conservativeness=0.9), Options(reduction=2.0)],
)
def test_options_out_of_range_are_refused(options: Options) -> None:
    with pytest.raises(InvalidValueError):
        TokenFlow(options)
