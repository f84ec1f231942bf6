"""Turns of 50 iterations."""

import pytest

from qlm.agents.batching.policies.round_robin import QUANTUM_ITERATIONS, RoundRobin
from qlm.agents.batching.view import Place
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from support.batch_jobs import Job, pace_of
from support.batch_toy import ToyEngine
from support.batch_views import MACHINE, PACE, Row, view
from support.policy_engine import PROFILE, drive

ONE = MACHINE._replace(kv_blocks=8)  # of 100 tokens and growth: 8 blocks each
TURN_S = QUANTUM_ITERATIONS * PACE.step_s


def test_a_turn_is_fifty_iterations_and_the_longest_wait_follows() -> None:
    policy = RoundRobin()
    runs, waits = Row("runs", Place.INSIDE), [Row("second", arrival_s=0.2), Row("first", arrival_s=0.1)]
    later = Row("runs", Place.INSIDE, generated=9)
    begin = policy.decide(view(runs, *waits, machine=ONE, now_s=1.0))
    assert begin.run == ("runs",)
    assert begin.again_s == pytest.approx(1.0 + TURN_S)
    assert policy.decide(view(later, *waits, machine=ONE, now_s=0.9 + TURN_S)).run == ("runs",)
    assert policy.decide(view(later, *waits, machine=ONE, now_s=1.0 + TURN_S)).run == ("first",)


def test_of_several_whose_turn_ended_the_one_that_ran_longest_yields() -> None:
    policy = RoundRobin()
    two = MACHINE._replace(kv_blocks=16)
    old, recent = Row("old", Place.INSIDE), Row("recent", Place.INSIDE)
    policy.decide(view(old, machine=two, now_s=1.0))
    policy.decide(view(old, recent, machine=two, now_s=2.0))
    old, recent = Row("old", Place.INSIDE, generated=2), Row("recent", Place.INSIDE, generated=1)
    decision = policy.decide(view(old, recent, Row("new", arrival_s=4.0), machine=two, now_s=4.0))
    assert decision.run == ("new", "recent")


def test_a_turn_that_ended_goes_on_while_its_blocks_are_not_needed() -> None:
    policy = RoundRobin()
    policy.decide(view(Row("a", Place.INSIDE), now_s=1.0))
    went_on = Row("a", Place.INSIDE, generated=9)
    decision = policy.decide(view(went_on, Row("b", arrival_s=9.0), now_s=9.0))
    assert decision.run == ("b", "a")
    assert decision.again_s is None


def test_the_wait_of_a_preempted_request_begins_with_the_preemption() -> None:
    policy = RoundRobin()
    policy.decide(view(Row("a", Place.INSIDE), Row("b", arrival_s=2.0), machine=ONE, now_s=2.0))
    policy.decide(view(Row("a"), Row("b", Place.INSIDE, 2.0), machine=ONE, now_s=4.0))
    rows = [Row("a"), Row("b", Place.INSIDE, 2.0, generated=9), Row("c", arrival_s=3.0)]
    assert policy.decide(view(*rows, machine=ONE, now_s=4.0 + TURN_S)).run == ("c",)


def test_a_turn_lasts_until_its_first_token() -> None:
    policy = RoundRobin()
    policy.decide(view(Row("a", generated=7), Row("b", arrival_s=1.0), machine=ONE, now_s=1.0))
    now_s, waits = 2.0 + TURN_S, Row("b", arrival_s=1.0)
    computes = policy.decide(view(Row("a", Place.INSIDE, generated=7), waits, machine=ONE, now_s=now_s))
    assert computes.run == ("a",)
    assert computes.again_s == pytest.approx(now_s + PACE.step_s)
    decodes = policy.decide(view(Row("a", Place.INSIDE, generated=8), waits, machine=ONE, now_s=now_s))
    assert decodes.run == ("b",)


def test_texts_that_take_longer_than_a_turn_to_compute_are_answered() -> None:
    """They were preempted before the first token, and computed again, for ever."""
    context = 16 * (QUANTUM_ITERATIONS + 20)  # computed by 16 tokens an iteration
    capacity = EngineCapacity(kv_tokens=context, block_tokens=16, seqs_max=2, context_tokens=context)
    calls = [
        EngineCall(call_id=f"r{number}", prompt_ids=(1,) * (context - 3), sampling=Sampling(max_tokens=3))
        for number in range(3)
    ]
    opener = scripted_generation(
        lambda call: Script(output_tokens=3, base=int(call.call_id[1:]) << 20),
        block_tokens=16,
        context_tokens=context,
    )
    engine = BatchingEngine(PROFILE, capacity, opener, batched_tokens_max=16, policy=RoundRobin())
    served = drive(engine, [(call, 0, 3) for call in calls])
    assert [tokens for _, _, tokens in served.values()] == [3, 3, 3]


def test_three_requests_that_fit_one_at_a_time_take_turns() -> None:
    machine = MACHINE._replace(iteration=IterationTime.constant(20.0), kv_blocks=20)
    jobs = [Job(name, prompt=200, answer=100) for name in "abc"]
    engine = ToyEngine(RoundRobin(), machine, jobs, pace=pace_of(jobs)).play()
    played = list(engine.played.values())
    # An answer takes two turns of 50 iterations: a b c a b c.
    assert [each.preemptions for each in played] == [1, 1, 1]
    assert [round(each.times_s[0]) for each in played] == [0, 1, 2]
    assert engine.steps == 300
    assert RoundRobin().room(view(Row("a"))) == 2 * MACHINE.seqs_max - 1
