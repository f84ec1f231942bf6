"""Whole simulations: determinism, conservation, faults and reports."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.ids import InstanceId
from qlm.domain.operations import MODEL_SWAPS
from qlm.domain.slo import OnMiss, TokenSlo
from qlm.simulator.report import COLUMNS, requests_csv, summary
from qlm.simulator.results import NEVER, REFUSED, UNFINISHED, SimulationResult
from qlm.simulator.sampling import ClusterSampler
from qlm.simulator.scenario import (
    BrokerOutage,
    Fault,
    KillEngine,
    KillInstance,
    PauseController,
    SloClass,
    SlowInstance,
    StoreOutage,
    Workload,
)
from qlm.simulator.seeds import Seeds
from support.simulation import BATCH, LARGE, REPORT, SMALL, run, scenario, workload

I0, I1 = InstanceId("i0"), InstanceId("i1")


def check_sound(result: SimulationResult) -> None:
    """Check that no request was lost or doubled, or got more or fewer tokens than it should."""
    work, outcomes = result.workload, result.outcomes
    answered = np.array([outcome in ("stop", "length") for outcome in outcomes.outcome])
    assert set(outcomes.outcome) <= {"stop", "length", REFUSED, UNFINISHED}
    wanted = np.minimum(work.output_tokens, work.max_tokens)
    assert np.array_equal(outcomes.tokens[answered], wanted[answered])
    natural = work.output_tokens <= work.max_tokens
    assert [o == "stop" for o in np.array(outcomes.outcome)[answered]] == natural[answered].tolist()
    assert np.all(outcomes.first_token_ns[answered] > work.arrival_ns[answered])
    assert np.all(outcomes.ended_ns[answered] >= outcomes.first_token_ns[answered])
    assert np.all(outcomes.instance[answered] >= 0)
    assert not np.any(outcomes.met & ~answered)


@pytest.mark.parametrize("policy", ["edf", "fcfs", "qlm"])
def test_every_request_is_answered_in_full(policy: str) -> None:
    result = run(scenario(workload(300, rate_rps=12.0)), policy=policy)
    check_sound(result)
    assert set(result.outcomes.outcome) <= {"stop", "length"}
    assert result.simulated_s > result.workload.arrival_ns[-1] / 1e9


def test_equal_seeds_give_equal_bytes_and_other_seeds_do_not() -> None:
    subject = scenario(workload(150, rate_rps=20.0, models=2), models=(SMALL, LARGE))
    assert requests_csv(run(subject, seed=3)) == requests_csv(run(subject, seed=3))
    assert requests_csv(run(subject, seed=3)) != requests_csv(run(subject, seed=4))


def test_the_order_in_which_instances_and_faults_are_listed_does_not_matter() -> None:
    faults = (
        KillInstance(at_s=2.0, instance=I0, down_s=3.0),
        SlowInstance(at_s=2.0, instance=I1, for_s=3.0, factor=2.0),
    )
    subject = scenario(workload(80, rate_rps=20.0), faults=faults)
    turned = replace(subject, instances=subject.instances[::-1], faults=faults[::-1])
    assert requests_csv(run(subject)) == requests_csv(run(turned))


def test_models_share_instances_and_swaps_are_counted() -> None:
    subject = scenario(workload(120, rate_rps=6.0, models=2), models=(SMALL, LARGE), instances=1)
    result = run(subject)
    check_sound(result)
    assert UNFINISHED not in result.outcomes.outcome
    assert result.swaps_cold >= 1 and result.swaps_warm + result.swaps_cold >= 1
    assert result.swap_seconds > 0
    figures = summary(result)
    assert figures["swaps"] == result.swaps_warm + result.swaps_reload + result.swaps_cold


def test_urgent_requests_evict_batch_work_only_under_a_policy_that_may() -> None:
    def make(seeds: Seeds) -> Workload:
        """Fill the one instance with long batch work, then let urgent requests come."""
        base = workload(400, rate_rps=400.0, output_tokens=400.0)(seeds)
        urgent = np.arange(400) >= 300
        arrival_ns = np.where(urgent, base.arrival_ns + 3 * 10**9, base.arrival_ns)
        return replace(base, arrival_ns=arrival_ns, slo_class=np.where(urgent, 0, 2))

    patient = SloClass(name="patient", slo=TokenSlo(ttft_ms=7000))
    subject = replace(scenario(make, instances=1), slo_classes=(patient, REPORT, BATCH))
    evicting, waiting = run(subject), run(subject, policy="fcfs")
    check_sound(evicting)
    assert evicting.outcomes.evictions.sum() > 0
    assert waiting.outcomes.evictions.sum() == 0
    assert evicting.outcomes.met[300:].mean() > waiting.outcomes.met[300:].mean()


def test_a_full_queue_refuses_and_refusals_count_as_missed() -> None:
    result = run(scenario(workload(400, rate_rps=100.0), instances=1, queue_depth_max=30))
    check_sound(result)
    refused = np.array([outcome == REFUSED for outcome in result.outcomes.outcome])
    assert 0 < refused.sum() < 400
    assert not result.outcomes.met[refused].any()
    assert summary(result)["refused"] == refused.sum()
    assert summary(result)["attainment"] == pytest.approx(result.outcomes.met.mean())


def test_the_horizon_leaves_the_rest_unfinished() -> None:
    result = run(scenario(workload(400, rate_rps=100.0), instances=1, horizon_s=3.0))
    check_sound(result)
    assert UNFINISHED in result.outcomes.outcome
    assert result.simulated_s <= 3.0
    started = result.outcomes.first_token_ns >= 0
    assert np.all(result.outcomes.tokens[started] > 0), "what a client has by then is counted"


def test_requests_due_after_the_horizon_are_neither_submitted_nor_missed() -> None:
    result = run(scenario(workload(400, rate_rps=100.0, classes=1), instances=1, horizon_s=3.0))
    arrived = result.workload.arrival_ns <= 3_000_000_000
    summed, rows = summary(result), requests_csv(result).splitlines()[1:]
    assert 0 < arrived.sum() < 400
    assert [len(rows), summed["submitted"], summed["counted"]] == [arrived.sum()] * 3
    assert summed["not_arrived"] == 400 - arrived.sum()
    assert summed["attainment"] == result.outcomes.met[arrived].mean()
    assert summed["attainment_by_class"] == {"chat": summed["attainment"]}
    assert sum(summed["outcomes"].values()) == arrived.sum()
    assert 0 < summed["unfinished"] < arrived.sum()


@pytest.mark.parametrize("horizon_s", [2.0, 8.0, None])
def test_a_swap_that_the_horizon_cuts_off_is_in_no_sum(horizon_s: float | None) -> None:
    subject = scenario(
        workload(60, rate_rps=30.0, models=2), instances=1, models=(SMALL, LARGE), horizon_s=horizon_s
    )
    summed = summary(run(subject))
    done = summed["operations"]
    assert summed["swaps"] == sum(done[operation] for operation in MODEL_SWAPS.values())
    assert (summed["swaps"] > 0) == (summed["swap_seconds"] > 0) == (horizon_s is None)


def test_a_killed_instance_loses_nothing() -> None:
    faults = (KillInstance(at_s=1.0, instance=I0, down_s=8.0),)
    result = run(scenario(workload(120, rate_rps=40.0), faults=faults, append_interval_s=0.02))
    check_sound(result)
    assert UNFINISHED not in result.outcomes.outcome and REFUSED not in result.outcomes.outcome


def test_a_long_outage_is_waited_for() -> None:
    """More than an hour without an instance is no reason to give up while one is to come back."""
    faults = (KillInstance(at_s=0.5, instance=I0, down_s=8000.0),)
    result = run(scenario(workload(20, rate_rps=20.0), instances=1, faults=faults))
    check_sound(result)
    assert UNFINISHED not in result.outcomes.outcome
    assert result.simulated_s > 8000


def test_a_first_token_in_time_is_not_dropped_for_being_late() -> None:
    dropping = SloClass(name="stream", slo=TokenSlo(ttft_ms=1500), on_miss=OnMiss.DROP)
    subject = scenario(workload(100, rate_rps=30.0, classes=1, output_tokens=200.0), instances=1)
    result = run(replace(subject, slo_classes=(dropping,)))
    in_time = result.outcomes.first_token_ns - result.workload.arrival_ns <= 1_500_000_000
    in_time &= result.outcomes.first_token_ns >= 0
    assert in_time.sum() > 50
    assert {np.array(result.outcomes.outcome)[in_time][n] for n in range(in_time.sum())} <= {"stop", "length"}


def test_a_slow_instance_takes_longer() -> None:
    plain = run(scenario(workload(60, rate_rps=40.0), instances=1))
    slowed = run(
        scenario(
            workload(60, rate_rps=40.0),
            instances=1,
            faults=(SlowInstance(at_s=0.0, instance=I0, for_s=1e6, factor=3.0),),
        )
    )
    ratio = slowed.outcomes.ended_ns.max() / plain.outcomes.ended_ns.max()
    assert 2.0 < ratio < 3.2


def _faults() -> st.SearchStrategy[Fault]:
    at_s, for_s = st.floats(0.0, 12.0), st.floats(0.1, 6.0)
    instance = st.sampled_from([I0, I1])
    return st.one_of(
        st.builds(KillInstance, at_s=at_s, instance=instance, down_s=for_s),
        st.builds(KillEngine, at_s=at_s, instance=instance),
        st.builds(SlowInstance, at_s=at_s, instance=instance, for_s=for_s, factor=st.floats(0.3, 5.0)),
        st.builds(PauseController, at_s=at_s, for_s=for_s),
        st.builds(StoreOutage, at_s=at_s, for_s=for_s),
        st.builds(BrokerOutage, at_s=at_s, for_s=for_s),
    )


@settings(max_examples=25, deadline=None)
@given(
    faults=st.lists(_faults(), max_size=4),
    seed=st.integers(0, 1000),
    policy=st.sampled_from(["edf", "fcfs", "qlm"]),
)
def test_nothing_is_lost_whatever_goes_wrong(faults: list[Fault], seed: int, policy: str) -> None:
    subject = scenario(
        workload(60, rate_rps=10.0, models=2),
        models=(SMALL, LARGE),
        faults=tuple(faults),
        append_interval_s=0.05,
    )
    result = run(subject, seed=seed, policy=policy)
    check_sound(result)
    assert UNFINISHED not in result.outcomes.outcome


def test_reports_have_the_columns_of_the_design() -> None:
    result = run(scenario(workload(40, rate_rps=20.0)))
    head, *rows = requests_csv(result).splitlines()
    assert head == ",".join(COLUMNS)
    assert len(rows) == 40
    assert rows[0].startswith("r0000000,mistral-7b,default,")
    assert all(len(row.split(",")) == len(COLUMNS) for row in rows)


def test_samples_show_the_cluster_over_time() -> None:
    sampler = ClusterSampler(0.5)
    run(scenario(workload(100, rate_rps=30.0)), observer=sampler)
    assert [sample.at_s for sample in sampler.samples[:3]] == [0.0, 0.5, 1.0]
    assert max(max(sample.running) for sample in sampler.samples) > 0
    assert all(0.0 <= use <= 1.0 for sample in sampler.samples for use in sample.kv_usage)
    assert all(index != NEVER for index in sampler.samples[1].awake)
