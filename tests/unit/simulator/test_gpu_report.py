"""Where the GPU seconds of a simulation went."""

import csv
import io

import pytest

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.stats.gpu_time import BESIDE_WORK, GpuUse
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import InstanceId
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, scripted_generation
from qlm.simulator.gpu_report import IDLE_COLUMNS, gpu_summary, gpu_time_text, idle_csv
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import Fault, KillEngine, KillInstance, StoreOutage
from support.simulation import LARGE, SMALL, run, scenario, workload

I0, I1 = InstanceId("i0"), InstanceId("i1")
FAULTS: tuple[Fault, ...] = (
    KillEngine(at_s=4.0, instance=I0),
    KillInstance(at_s=9.0, instance=I1, down_s=6.0),
    StoreOutage(at_s=14.0, for_s=2.0),
)


def check_account(result: SimulationResult) -> None:
    """Check that each nanosecond of each instance has one use."""
    for time, intervals in zip(result.gpu_times, result.intervals, strict=True):
        assert time.total_ns == round(result.simulated_s * 1e9)
        at_ns = intervals[0].began_ns
        for each in intervals:
            assert each.began_ns == at_ns
            at_ns = each.ended_ns
        for use in GpuUse:
            assert sum(each.lasts_ns for each in intervals if each.use is use) == time.ns[use]
            assert all(each.activity.why for each in intervals if each.use in BESIDE_WORK)


@pytest.mark.parametrize("policy", ["edf", "fcfs", "qlm", "qlm+unplaced"])
@pytest.mark.parametrize("faults", [(), FAULTS], ids=["calm", "faults"])
def test_the_seconds_of_each_instance_add_up(policy: str, faults: tuple[Fault, ...]) -> None:
    subject = scenario(workload(120, rate_rps=12.0, models=2), models=(SMALL, LARGE), faults=faults)
    result = run(subject, policy=policy)
    check_account(result)
    summed = gpu_summary(result)
    assert sum(summed["gpu_time"].values()) == pytest.approx(1.0)
    assert summed["gpu_time_by_instance"].keys() == {"i0", "i1"}
    if faults:
        assert summed["gpu_time_by_instance"]["i1"]["down"] >= 6.0
        assert summed["gpu_time"]["again"] > 0, "answers of the killed engine go on elsewhere"


def test_swaps_take_the_time_that_the_engines_take() -> None:
    result = run(scenario(workload(120, rate_rps=12.0, models=2), models=(SMALL, LARGE)), policy="fcfs")
    assert result.swap_seconds > 0
    swap_s = sum(time.ns[GpuUse.SWAP] for time in result.gpu_times) / 1e9
    assert swap_s == pytest.approx(result.swap_seconds, abs=0.1)


def test_idle_instances_beside_work_are_listed_with_a_reason() -> None:
    result = run(scenario(workload(120, rate_rps=12.0, models=2), models=(SMALL, LARGE)), policy="fcfs")
    head, *rows = csv.reader(io.StringIO(idle_csv(result)))
    assert tuple(head) == IDLE_COLUMNS
    reasons = {row[6] for row in rows}
    assert "the plan has none of it here" in reasons
    assert all(row[7] for row in rows if float(row[2]) > 2.0), "the plan compared costs"
    shares = gpu_summary(result)["gpu_time"]
    listed_s = sum(float(row[2]) for row in rows)
    assert listed_s == pytest.approx(
        (shares["idle_awake"] + shares["idle_loadable"]) * 2 * result.simulated_s, rel=1e-3
    )


def test_one_line_tells_the_shares() -> None:
    summed = gpu_summary(run(scenario(workload(20, rate_rps=12.0))))
    assert gpu_time_text(summed).startswith("GPU time: ") and " % useful" in gpu_time_text(summed)


def seconds_of(profile: Profile, prompts: list[int]) -> float:
    """Return the time in which an engine serves prompts at once, each with an answer of 60 tokens."""
    capacity = EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=profile.seqs_max,
        context_tokens=min(profile.context_tokens, 8192),
    )
    script = scripted_generation(
        lambda call: Script(output_tokens=60, base=int(call.call_id) << 20),
        block_tokens=capacity.block_tokens,
        context_tokens=capacity.context_tokens,
    )
    engine = BatchingEngine(profile, capacity, script, async_scheduling=False)
    for number, tokens in enumerate(prompts):
        call = EngineCall(call_id=str(number), prompt_ids=(0,) * tokens, sampling=Sampling(max_tokens=60))
        engine.add(call, 0)
    now_ns = 0
    while (step := engine.step(now_ns)) is not None:
        now_ns += step.duration_ns
    return now_ns / 1e9


@pytest.mark.parametrize(
    ("model", "kind"), [("mistral-7b", "A100"), ("vicuna-13b", "A100"), ("mistral-7b", "A10")]
)
@pytest.mark.parametrize("tokens", [200, 1000, 3000])
def test_the_profile_tells_what_computing_again_adds(model: str, kind: str, tokens: int) -> None:
    """Resumed prompts longer by `tokens` each, in a batch: the time that this adds, against the account's."""
    profile = find_profile(builtin_profiles(), model, kind, 1)
    requests = 12
    added_s = seconds_of(profile, [tokens + 100] * requests) - seconds_of(profile, [100] * requests)
    # Longer texts make each further token slower, too: that is no computing again.
    decoding_s = requests * tokens * 60 * profile.iteration.kv_ms / 1000
    assert requests * EngineSpeed.of(profile).added_s(tokens) == pytest.approx(added_s - decoding_s, rel=0.25)
