"""KV offload: by cost, and by the contents of host memory."""

from dataclasses import replace

import pytest

from qlm.agents.core.costs.kv_offload import KvSwapCost, host_kv_bytes, host_kv_pools, kept_in_host
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Progress
from qlm.domain.actions import ReportParked, Submit
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import SwapCost
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.profile import Profile
from support.agent_bench import Bench, M, group_of
from support.requests import a_request

SWAPS = KvSwapCost(host_tokens=1000, recompute_s=1e-4, load_s=1e-5)


@pytest.mark.parametrize("profile", builtin_profiles(), ids=lambda p: f"{p.model}-{p.accelerator}-{p.gpus}")
def test_the_cheaper_way_is_chosen_by_bandwidth_and_prefill(profile: Profile) -> None:
    """A link a thousand times slower than the one of the profile makes computing the cheaper way."""
    assert host_kv_bytes(profile, 2**30) == 2**30
    slow = replace(profile, host_bandwidth_bytes_per_s=profile.host_bandwidth_bytes_per_s / 1000)
    assert host_kv_bytes(slow, 2**30) == 0
    assert not KvSwapCost.of(profile, 0).swaps


def test_a_token_late_in_a_text_costs_more_to_compute_again() -> None:
    """Causal attention compares it with all tokens before it."""
    profile = builtin_profiles()[0]
    sources = {**profile.sources, "square_ms": profile.sources["kv_tokens"]}
    steep = replace(profile.iteration, square_ms=1e-5)
    plain, squared = (
        KvSwapCost.of(replace(profile, iteration=each, sources=sources), 2**30)
        for each in (replace(steep, square_ms=0.0), steep)
    )
    assert plain.recompute_s == pytest.approx(profile.iteration.last_slope_ms / 1000)
    assert squared.recompute_s - plain.recompute_s == pytest.approx(1e-8 * profile.context_tokens / 4)


ON_A100 = {
    ModelId(profile.model): profile
    for profile in builtin_profiles()
    if (profile.accelerator, profile.gpus) == ("A100", 1) and profile.model != "llama-70b"
}
"""Models of 14.5, 16.1 and 26 GB."""


def pools(host_memory_bytes: int, *tiers: SwapTier, pool: int = 16 * 2**30) -> list[int]:
    wanted = dict.fromkeys(ON_A100, pool)
    return list(host_kv_pools(ON_A100, wanted, host_memory_bytes, tiers).values())


def asleep(tier: SwapTier) -> int:
    """Return the host memory of the two largest models while they sleep."""
    return sum(sorted(SwapCost.of(profile).holds_bytes(tier) for profile in ON_A100.values())[1:])


def test_kv_pools_get_the_host_memory_beside_sleeping_weights() -> None:
    weights = asleep(SwapTier.WARM)
    assert pools(weights + 2 * 16 * 2**30, SwapTier.WARM, SwapTier.RELOAD) == [16 * 2**30] * 3
    assert pools(weights + 2**31, SwapTier.WARM) == [2**30] * 3
    assert pools(weights, SwapTier.WARM) == [0, 0, 0]


def test_kv_pools_keep_the_memory_of_weights_that_do_not_stay() -> None:
    processes = asleep(SwapTier.RELOAD)
    assert pools(processes + 2**31, SwapTier.RELOAD) == [2**30] * 3
    assert pools(0) == [16 * 2**30] * 3, "engines are stopped, and their pools with them"


def test_a_model_alone_and_one_that_wants_no_pool_take_nothing_from_others() -> None:
    (model, profile), *_ = ON_A100.items()
    assert host_kv_pools({model: profile}, {model: 2**30}, 1, [SwapTier.WARM]) == {model: 2**30}
    one = {name: 2**30 if name == model else 0 for name in ON_A100}
    assert host_kv_pools(ON_A100, one, asleep(SwapTier.WARM) + 2**30, [SwapTier.WARM]) == one


class Pushed:
    """A batch request that was preempted for an urgent one after four tokens."""

    def __init__(self, cost: KvSwapCost) -> None:
        self.bench = bench = Bench(seqs_max=1, costs=OperationCosts(kv={M: cost}))
        self.batch = a_request("batch", max_tokens=1000)
        slow = bench.start(self.batch)
        bench.at_pace(token_s=0.1, service_s=1)
        bench.send(Progress(chunks=((slow.call.call_id, (1, 2, 3, 4)),)))
        urgent = a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns)
        bench.queue(group_of(urgent, name="u"))
        bench.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
        bench.store_appends()
        self.fast = bench.deliver(urgent, name="u")

    def resume(self, *, tokens: int = 1) -> Submit:
        """End the urgent request after `tokens` tokens, and resume the other."""
        call_id = self.fast.call.call_id
        self.bench.send(Progress(chunks=((call_id, (7,) * tokens),)))
        self.bench.send(GenerationEnded(call_id=call_id, finish="stop"))
        self.bench.store_appends()
        (resumed,) = self.bench.take(Submit)
        return resumed


def test_a_swapped_request_computes_nothing_again() -> None:
    pushed = Pushed(SWAPS)
    agent = pushed.bench.agent
    assert [note.why for note in pushed.bench.take(ReportParked)] == ["swapped out for more urgent work"]
    (staged,) = agent.status().staged
    assert (staged.evicted, staged.evicted_tokens) == (1, 0)
    before = agent.state.stats.work.prompt_tokens
    resumed = pushed.resume()
    assert len(resumed.call.prompt_ids) == pushed.batch.prompt_tokens + 4
    assert agent.state.stats.work.prompt_tokens == before
    pushed.bench.send(Progress(chunks=((resumed.call.call_id, (5,)),)))
    pushed.bench.send(GenerationEnded(call_id=resumed.call.call_id, finish="stop"))
    assert (agent.state.stats.work.repeated_tokens, agent.state.stats.work.unused_prompt_tokens) == (0, 0)


def test_without_host_memory_it_is_computed_again() -> None:
    pushed = Pushed(replace(SWAPS, host_tokens=0))
    agent = pushed.bench.agent
    assert [note.why for note in pushed.bench.take(ReportParked)] == ["evicted for more urgent work"]
    (staged,) = agent.status().staged
    assert staged.evicted_tokens == pushed.batch.prompt_tokens + 4
    before = agent.state.stats.work.prompt_tokens
    pushed.resume()
    assert agent.state.stats.work.prompt_tokens == before + pushed.batch.prompt_tokens + 4


def test_blocks_dropped_from_host_memory_are_computed_again() -> None:
    pushed = Pushed(SWAPS)
    before = pushed.bench.agent.state.stats.work.prompt_tokens
    pushed.resume(tokens=1000)
    assert pushed.bench.agent.state.stats.work.prompt_tokens > before


def test_computed_tokens_count_even_if_swapped_out_afterwards() -> None:
    pushed = Pushed(SWAPS)
    bench, tracked = pushed.bench, pushed.bench.agent.state.requests.all[pushed.batch.id]
    assert tracked.generation.swapped_out
    resumed = pushed.resume(tokens=1000)
    assert not tracked.generation.swapped_in
    bench.send(Progress(chunks=((resumed.call.call_id, (5,)),)))
    bench.at_pace(token_s=100, service_s=1000)
    urgent = a_request("other", deadline_ms=2000, arrival_ns=bench.now_ns)
    bench.queue(group_of(urgent, name="v"))
    bench.send(GenerationEnded(call_id=resumed.call.call_id, finish="abort"))
    assert (tracked.generation.swapped_out, tracked.generation.swapped_in) == (True, False)
    assert bench.agent.state.stats.work.repeated_tokens == pushed.batch.prompt_tokens + 4


def test_a_model_that_has_slept_has_nothing_in_host_memory() -> None:
    pushed = Pushed(SWAPS)
    agent = pushed.bench.agent
    tracked = agent.state.requests.all[pushed.batch.id]
    assert kept_in_host(agent.state.costs.kv, agent.state.stats.work, tracked)
    pushed.bench.send(EngineChanged(model=M, state=EngineState.ASLEEP))
    pushed.bench.awake(M)
    assert not kept_in_host(agent.state.costs.kv, agent.state.stats.work, tracked)
