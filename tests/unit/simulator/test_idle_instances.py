"""No instance runs out of work while requests of its awake model wait on the queue of another one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from qlm.agents.core.stats.gpu_time import GpuUse
from qlm.controller.core.decide import ControllerSettings
from qlm.domain.ids import InstanceId
from qlm.domain.slo import DeadlineSlo
from qlm.simulator.scenario import KillInstance, Scenario, SloClass, Workload
from qlm.simulator.seeds import Seeds
from support.idle_instances import longest_idle_s, new_sampler
from support.simulation import BATCH, LARGE, SMALL, run, scenario, workload

IDLE_MAX_S = 2.0
I1 = InstanceId("i1")
NIGHTLY = SloClass(name="nightly", slo=DeadlineSlo(deadline_ms=600_000))


def burst(requests: int, slo_class: int) -> Callable[[Seeds], Workload]:
    """Return a maker of equal requests that all come at once, some 30 of which fill a batch."""

    def make(seeds: Seeds) -> Workload:
        base = workload(requests, rate_rps=1e6)(seeds)
        return replace(
            base,
            slo_class=np.full(requests, slo_class),
            prompt_tokens=np.full(requests, 3000),
            output_tokens=np.full(requests, 300),
        )

    return make


def burst_beside_an_instance_that_returns(slo_class: int) -> Scenario:
    subject = scenario(burst(260, slo_class), faults=(KillInstance(at_s=0.5, instance=I1, down_s=2.0),))
    # One group of 250 and a small one.
    settings = ControllerSettings(delta=1000.0, group_requests_max=250)
    return replace(subject, slo_classes=(NIGHTLY, BATCH), controller=settings)


@pytest.mark.parametrize("slo_class", [0, 1])
@pytest.mark.parametrize("policy", ["qlm", "qlm+unplaced"])
def test_a_burst_is_shared_with_an_instance_that_comes_back(slo_class: int, policy: str) -> None:
    subject, sampler = burst_beside_an_instance_that_returns(slo_class), new_sampler()
    ours, fcfs = run(subject, policy=policy, observer=sampler), run(subject, policy="fcfs")
    assert longest_idle_s(sampler) <= IDLE_MAX_S
    assert ours.simulated_s <= 1.05 * fcfs.simulated_s


@pytest.mark.parametrize("rate_rps", [4.0, 8.0])
def test_no_instance_is_idle_beside_work_of_its_awake_model(rate_rps: float) -> None:
    subject = scenario(workload(150, rate_rps=rate_rps, models=2, output_tokens=200.0), models=(SMALL, LARGE))
    sampler = new_sampler()
    run(subject, policy="qlm", observer=sampler)
    assert longest_idle_s(sampler) <= IDLE_MAX_S


def chat_and_then_a_batch_job(seeds: Seeds) -> Workload:
    """Draw a minute of requests with a deadline for the large model, and a late burst for the small one."""
    chat = workload(240, rate_rps=4.0)(seeds)
    job = burst(500, 2)(seeds)
    arrival_ns = np.concatenate([chat.arrival_ns, job.arrival_ns + int(chat.arrival_ns[-1])])
    return replace(
        chat,
        arrival_ns=arrival_ns,
        model=np.repeat([1, 0], [240, 500]),
        tenant=np.zeros(740, dtype=np.int64),
        slo_class=np.repeat([1, 2], [240, 500]),
        prompt_tokens=np.concatenate([chat.prompt_tokens, np.full(500, 1000)]),
        output_tokens=np.concatenate([chat.output_tokens, np.full(500, 200)]),
        max_tokens=np.concatenate([chat.max_tokens, job.max_tokens]),
    )


def test_an_idle_instance_swaps_for_batch_work_that_would_take_long_elsewhere() -> None:
    subject = scenario(chat_and_then_a_batch_job, models=(SMALL, LARGE))
    takes_turns, only_small = subject.instances
    subject = replace(subject, instances=(takes_turns, replace(only_small, models=(SMALL,))))
    ours, fcfs = run(subject, policy="qlm"), run(subject, policy="fcfs")
    assert ours.gpu_times[0].longest_ns[GpuUse.IDLE_LOADABLE] < 10e9
    assert ours.simulated_s <= 1.1 * fcfs.simulated_s


def test_the_model_that_is_awake_at_the_start_needs_no_swap() -> None:
    subject = scenario(workload(20, rate_rps=4.0, models=1), models=(SMALL, LARGE), instances=1)
    other = replace(subject, instances=(replace(subject.instances[0], awake=LARGE),))
    swaps = [result.swaps_cold for result in (run(subject), run(other))]
    assert swaps == [0, 1]


def test_of_two_instances_one_keeps_the_model_that_both_have() -> None:
    """Each left it for the same other model, as the other instance still seemed to have it."""
    quick = SloClass(name="quick", slo=DeadlineSlo(deadline_ms=2000))
    arrivals = workload(150, rate_rps=30.0, models=2, output_tokens=20.0, prompt_tokens=50.0, classes=2)
    subject = scenario(arrivals, models=(SMALL, LARGE), host_memory_bytes=0)
    subject = replace(subject, slo_classes=(quick, replace(BATCH, priority=1)))
    ours, fcfs = (run(subject, policy=policy) for policy in ("qlm", "fcfs"))
    assert ours.outcomes.met.mean() >= fcfs.outcomes.met.mean()
    assert ours.swaps_cold == 1
