"""Statistics of serving operations."""

from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Progress, Pulled, WeightsPrefetched
from qlm.agents.core.stats.operation_stats import CHARGES_MAX, OperationRecorder
from qlm.domain.actions import PrefetchModel, Pull, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.metric_labels import OTHER
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge, SwapTier
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import Bench, M, N, S, group_of
from support.requests import a_request

KV = KvSwapCost(host_tokens=1000, recompute_s=1e-4, load_s=1e-5)
COST = SwapCost(weights_bytes=10, warm_s=2.0, reload_s=5.0, cold_s=45.0)


def stats_of(bench: Bench) -> OperationStats:
    return bench.agent.status().operations


def swap(bench: Bench, model: str, tier: SwapTier, *, takes_s: float) -> None:
    """Swap the model for a waiting group."""
    request = a_request(f"for-{model}", model=model)
    bench.queue(group_of(request, name=f"g-{model}"))
    bench.later(0.2)
    asked = bench.take(SwapModel)[-1]
    bench.now_ns += round(takes_s * S)
    bench.send(EngineChanged(model=asked.model, state=EngineState.AWAKE, capacity=bench.capacity, tier=tier))
    bench.take(Pull)
    bench.send(Pulled(group=group_of(request, name=f"g-{model}").id, limit=1, messages=()))
    bench.queue()


def test_swaps_are_counted_by_tier_and_charged_to_the_class_that_caused_them() -> None:
    bench = Bench()
    swap(bench, N, SwapTier.COLD, takes_s=40.0)
    swap(bench, M, SwapTier.WARM, takes_s=3.0)
    stats = stats_of(bench)
    assert stats.model_swaps == 3, "the first model came from nothing, at once"
    assert stats.seconds(Operation.MODEL_SWAP_COLD) == 40.0
    by_class = {each.cls: each for each in stats.swap_lost}
    classes = [a_request("x", model=model).cls.queue for model in (N, M)]
    assert [by_class[name] for name in classes] == [
        SwapCharge(classes[0], 1, 40.0), SwapCharge(classes[1], 1, 3.0)
    ]  # fmt: skip
    assert stats.swap_lost[0].cls == classes[0], "who lost most comes first"


def test_classes_beyond_the_limit_are_charged_together() -> None:
    recorder = OperationRecorder()
    for n in range(CHARGES_MAX + 3):
        recorder.swap_began(None, ModelId(M), f"class-{n}", 0)
        recorder.swapped(SwapTier.WARM, S)
    recorder.swap_began(None, ModelId(M), "class-0", 0)
    recorder.swapped(SwapTier.WARM, S)
    lost = {each.cls: each.count for each in recorder.stats().swap_lost}
    assert len(lost) == CHARGES_MAX + 1
    assert (lost["class-0"], lost["class-1"], lost[OTHER]) == (2, 1, 3)


def test_a_model_swapped_back_soon_counts_as_thrash() -> None:
    bench = Bench()
    swap(bench, N, SwapTier.WARM, takes_s=3.0)
    swap(bench, M, SwapTier.WARM, takes_s=3.0)
    assert stats_of(bench).swaps_thrashed == 1
    bench.now_ns += 100 * S
    swap(bench, N, SwapTier.WARM, takes_s=3.0)
    assert stats_of(bench).swaps_thrashed == 1


def test_a_model_that_does_not_start_is_a_failed_swap() -> None:
    bench = Bench()
    bench.queue(group_of(a_request(model=N)))
    bench.later(0.2)
    assert bench.take(SwapModel)
    bench.now_ns += 7 * S
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="no memory"))
    stats = stats_of(bench)
    assert OperationCount(Operation.MODEL_SWAP_FAILED, N, 1, 7.0) in stats.counts
    assert stats.model_swaps == 1, "the first model"


def test_a_preempted_request_is_counted_out_and_in() -> None:
    for kv, out, back in (
        ({M: KV}, Operation.SWAP_OUT, Operation.SWAP_IN), ({}, Operation.EVICT, Operation.RESUME)
    ):  # fmt: skip
        bench = Bench(seqs_max=1, costs=OperationCosts(kv=kv))
        slow, urgent = bench.preempt("batch")
        fast = bench.deliver(urgent, name="u")
        bench.send(GenerationEnded(call_id=fast.call.call_id, finish="stop"))
        bench.store_appends()
        before_s = stats_of(bench).seconds(out)
        assert stats_of(bench).count(out) == 1 and before_s > 0
        assert stats_of(bench).count(back) == 0, "it has no new token yet"
        call_id = f"{slow.call.call_id[:-1]}2"
        bench.now_ns += S
        bench.send(Progress(chunks=((call_id, (4,)),)))
        stats = stats_of(bench)
        assert stats.count(back) == 1 and stats.seconds(back) >= 1.0
        assert stats.count(Operation.SWAP_OUT, Operation.EVICT) == 1
        assert stats.ended == 1


def test_a_pull_lasts_until_the_broker_has_answered() -> None:
    bench = Bench()
    bench.queue(group_of(a_request("a")))
    assert bench.take(Pull)
    bench.now_ns += S // 100
    bench.deliver(a_request("a"))
    assert OperationCount(Operation.PULL, M, 1, 0.01) in stats_of(bench).counts


def test_a_prefetch_is_counted_when_it_succeeds() -> None:
    bench = Bench(costs=OperationCosts(swap={M: COST, N: COST}, host_memory_bytes=100))
    request = a_request("later", model=N)
    bench.queue(group_of(a_request("now"), name="now"), group_of(request, name="later"))
    assert bench.take(PrefetchModel) == [PrefetchModel(model=N)]
    bench.now_ns += 5 * S
    bench.send(WeightsPrefetched(models=(N,)))
    assert Operation.WARM not in {each.operation for each in stats_of(bench).counts}, "no answer yet"
    bench.send(WeightsPrefetched(models=(N,), requested=N))
    assert OperationCount(Operation.WARM, N, 1, 5.0) in stats_of(bench).counts
