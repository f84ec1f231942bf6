"""The bound on attainment: never below the best schedule of tiny scenarios, nor below a simulated policy."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.motion.bound.demand import demands
from benchmarks.motion.bound.fleet import available_s, pools, slowness
from benchmarks.motion.bound.upper_bound import upper_bound
from benchmarks.motion.bound.work import Part, parts_of, prices
from qlm.domain.ids import InstanceId
from qlm.domain.slo import BatchSlo, DeadlineSlo, TokenSlo
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, NUMBERS, Profile, Source, SourceKind
from qlm.simulator.scenario import Fault, KillInstance, Network, Scenario, SloClass, SlowInstance, Workload
from qlm.simulator.seeds import Seeds
from support.exact_schedule import most_met
from support.simulation import LARGE, SMALL, profiles, run, scenario, workload

CASES = 30
SOURCES = {name: Source(SourceKind.SPECIFIED, "a test") for name in (*COEFFICIENTS, *NUMBERS)}


def tiny_profile(rng: np.random.Generator, like: Profile) -> Profile:
    """Draw an engine that takes tenths of a second per iteration and has a batch of two."""
    slope_ms = rng.uniform(5, 60)
    floor_ms = rng.uniform(50, 250)
    unload_s, warm_s = rng.uniform(0.05, 0.4, 2)
    reload_s = warm_s + rng.uniform(0, 0.8)
    return replace(
        like,
        iteration=IterationTime(
            host_ms=rng.uniform(5, 50),
            linear_ms=((1.0, floor_ms), (4.0, floor_ms), (16.0, floor_ms + 12 * slope_ms)),
            kv_ms=rng.uniform(0, 5),
            sequence_ms=rng.uniform(0, 20),
            square_ms=rng.uniform(0, 2),
        ),
        async_scheduling=False,
        block_tokens=4,
        kv_tokens=32,
        context_tokens=32,
        seqs_max=2,
        batched_tokens_max=24,
        swap_warm_s=warm_s,
        swap_reload_s=reload_s,
        swap_cold_s=reload_s + rng.uniform(0.1, 1.5),
        unload_s=unload_s,
        request_ms=0.0,
        sources=SOURCES,
        fit=None,
        equations=None,
    )


def tiny(seed: int) -> tuple[Scenario, Workload]:
    """Draw four to six requests for two models on one or two instances."""
    rng = np.random.default_rng([seed, 19])
    requests, spread_s = int(rng.integers(4, 7)), rng.uniform(0.2, 4.0)
    drawn = Workload(
        arrival_ns=np.sort(rng.uniform(0, spread_s, requests) * 1e9).astype(np.int64),
        model=rng.integers(0, 2, requests),
        tenant=np.zeros(requests, dtype=np.int64),
        slo_class=rng.choice(3, requests, p=(0.5, 0.4, 0.1)),
        prompt_tokens=rng.integers(1, 13, requests),
        output_tokens=rng.integers(1, 4, requests),
        max_tokens=np.full(requests, 8),
    )
    subject = scenario(lambda seeds: drawn, models=(SMALL, LARGE), instances=int(rng.integers(1, 3)))
    speeds = {key: tiny_profile(rng, each) for key, each in profiles().items()}
    targets_ms = rng.uniform(250, 1500, 2)
    classes = (
        SloClass(name="first", slo=TokenSlo(ttft_ms=float(targets_ms[0]))),
        SloClass(name="whole", slo=DeadlineSlo(deadline_ms=float(targets_ms[1] * 1.5))),
        SloClass(name="batch", slo=BatchSlo()),
    )
    instances = tuple(
        replace(each, models=each.models[::-1]) if rng.random() < 0.5 else each for each in subject.instances
    )
    return replace(
        subject,
        instances=instances,
        fleet=replace(subject.fleet, profiles=speeds),
        slo_classes=classes,
        network=Network(store_s=0.0, broker_s=0.0, notice_s=0.0),
    ), drawn


@cache
def solved(seed: int) -> tuple[int, int, int]:
    """Return requests, the most that any schedule serves in time, and the bound."""
    subject, drawn = tiny(seed)
    bound = upper_bound(subject, drawn, buckets=80)
    return len(drawn), most_met(subject, drawn), round(bound * len(drawn))


@pytest.mark.parametrize("seed", range(CASES))
def test_no_schedule_serves_more_requests_in_time_than_the_bound(seed: int) -> None:
    requests, most, bound = solved(seed)
    assert most <= bound <= requests


def test_the_bound_is_reached_in_most_small_cases_and_is_not_trivial() -> None:
    found = [solved(seed) for seed in range(CASES)]
    assert sum(most < requests for requests, most, _ in found) >= 15
    assert sum(bound < requests for requests, _, bound in found) >= 10
    assert sum(bound == most for _, most, bound in found) >= 18


@pytest.mark.parametrize("seed", range(0, CASES, 5))
def test_no_simulated_policy_exceeds_the_bound_in_tiny_scenarios(seed: int) -> None:
    subject, drawn = tiny(seed)
    bound = upper_bound(subject, drawn, buckets=80)
    for policy in ("edf+rules", "fcfs"):
        assert run(subject, policy=policy).outcomes.met.mean() <= bound


@pytest.mark.parametrize(
    ("rate_rps", "faults"),
    [
        (2.0, ()),
        (30.0, ()),
        (20.0, (SlowInstance(at_s=0.0, instance=InstanceId("i0"), for_s=600.0, factor=1.7),)),
        (20.0, (SlowInstance(at_s=2.0, instance=InstanceId("i1"), for_s=3.0, factor=0.5),)),
        (20.0, (KillInstance(at_s=1.0, instance=InstanceId("i0"), down_s=5.0),)),
    ],
)
def test_no_simulated_policy_exceeds_the_bound(rate_rps: float, faults: tuple[Fault, ...]) -> None:
    subject = scenario(
        workload(100, rate_rps=rate_rps, models=2), models=(SMALL, LARGE), faults=faults, horizon_s=600.0
    )
    bound = upper_bound(subject, subject.make_workload(Seeds(1)))
    for policy in ("edf+visits", "sjf+rules", "qlm"):
        assert run(subject, policy=policy).outcomes.met.mean() <= bound


def test_a_model_that_never_was_awake_cannot_answer_before_its_first_start() -> None:
    """One instance, requests for the sleeping model at once with 2 s to their first token: all are lost."""
    made = workload(40, rate_rps=40.0, models=2, classes=1)
    subject = scenario(made, models=(SMALL, LARGE), instances=1)
    drawn = made(Seeds(1))
    assert upper_bound(subject, drawn) <= (drawn.model == 0).mean()


def test_prices_never_exceed_the_time_of_any_iteration() -> None:
    """Batches of decodes and chunks of prompts, drawn at random, take at least the sum of their prices."""
    rng = np.random.default_rng(0)
    for profile in profiles().values():
        of = prices(profile, seqs_max=profile.seqs_max, kv_tokens=profile.kv_tokens)
        for _ in range(300):
            decodes, chunks = int(rng.integers(0, 200)), int(rng.integers(0, 4))
            decodes += not decodes and not chunks
            contexts = rng.integers(1, max(2, (profile.kv_tokens - 6000) // (decodes + 1)), decodes)
            prompts = rng.integers(1, 2000, chunks)
            takes_s = profile.iteration.ms(
                tokens=decodes + int(prompts.sum()),
                context_tokens=float(contexts.sum()),
                sequences=decodes + chunks,
                pairs=float((prompts.astype(float) ** 2 / 2).sum()),
                mixed=bool(chunks),
            )
            first = [_part(prompt=int(each)) for each in prompts]
            work_s = sum((of.of(each) for each in first), np.zeros(len(of.plain)))
            work_s = work_s + of.output * decodes + of.context * contexts.sum() + of.sequence * decodes
            assert (work_s <= takes_s / 1e3).all()


def _part(*, prompt: int) -> Part:
    ends_s = (math.inf, math.inf)
    (found,) = parts_of(begin_s=0.0, ends_s=ends_s, prompt=prompt, shared=0, outputs=(0, 1))
    return found


def test_parts_have_all_tokens_of_a_request_once() -> None:
    first, rest = parts_of(begin_s=1.0, ends_s=(2.0, 9.0), prompt=10, shared=4, outputs=(1, 5))
    assert (first.plain, first.outputs, rest.plain, rest.outputs) == (5, 1, 0, 4)
    assert (first.pairs, rest.pairs) == ((100 - 16) / 2, 0)
    assert first.context + rest.context == 5 + 6 + 7 + 8 + 9
    assert (first.reading, rest.reading) == (0, 10 + 11 + 12 + 13)
    (known,) = parts_of(begin_s=1.0, ends_s=(2.0, 2.0), prompt=10, shared=10, outputs=(0, 1))
    assert (known.plain, known.outputs) == (0, 1)  # the last token of a prompt is computed in any case


def test_an_instance_works_at_its_speed_while_it_is_there() -> None:
    edges_s = np.array([0.0, 10.0, 20.0, 30.0])
    slow = slowness([SlowInstance(at_s=10.0, instance=InstanceId("i0"), for_s=10.0, factor=2.0)])
    assert available_s(edges_s, [], [], grace_s=1.0).tolist() == [0, 10, 20, 30]
    # What begins at 9.9 s may end within the grace at its old speed.
    assert available_s(edges_s, slow, [], grace_s=1.0).tolist() == [0, 10, 15.5, 25.5]
    fast = slowness([SlowInstance(at_s=10.0, instance=InstanceId("i0"), for_s=10.0, factor=0.5)])
    assert available_s(edges_s, fast, [], grace_s=1.0).tolist() == [0, 10, 30, 41]
    assert available_s(edges_s, [], [(5.0, 12.0)], grace_s=1.0).tolist() == [0, 5, 13, 23]


def test_batch_work_counts_as_met_and_equal_instances_are_one_pool() -> None:
    subject = scenario(workload(20, rate_rps=1.0), instances=3)
    drawn = subject.make_workload(Seeds(1))
    batch = int((drawn.slo_class == 2).sum())
    assert len(demands(subject, drawn)) == len(drawn) - batch
    (pool,) = pools(subject, np.array([0.0, 1.0]))
    assert (pool.size, pool.awake) == (3, {0: 3})
    lost = replace(subject, horizon_s=1e-3)
    assert upper_bound(lost, drawn) == batch / len(drawn)
