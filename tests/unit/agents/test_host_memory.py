"""Host memory: the tier of a sleeping model, and evictions for it."""

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.costs.host_memory import HostMemory
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import HostMemoryUse, SleepPlan, SwapCost, plan_sleep
from support.agent_bench import Bench, M, N

A, B, C = (ModelId(name) for name in "abc")
SIZES = {A: 10, B: 20, C: 30}
PROCESS = 2


def warm_only(sizes: Mapping[ModelId, int]) -> dict[ModelId, SwapCost]:
    """Return models for which a process without weights saves nothing."""
    return {model: SwapCost(weights_bytes=size) for model, size in sizes.items()}


def lasting(size: int, *, warm_s: float = 2.0, reload_s: float = 5.0, cold_s: float = 45.0) -> SwapCost:
    """A model with the times of one of 16 GB."""
    return SwapCost(
        weights_bytes=size, process_bytes=PROCESS, warm_s=warm_s, reload_s=reload_s, cold_s=cold_s
    )


def asleep(*models: ModelId) -> HostMemoryUse:
    return HostMemoryUse(asleep=dict.fromkeys(models, SwapTier.WARM))


def test_the_least_recently_used_models_are_evicted() -> None:
    costs = warm_only(SIZES)
    assert plan_sleep(C, asleep(A, B), costs, 60).stop == ()
    assert plan_sleep(C, asleep(A, B), costs, 50).stop == (A,)
    assert plan_sleep(C, asleep(A, B), costs, 49).stop == (A, B)[:2]


def test_a_model_larger_than_the_memory_is_stopped_and_evicts_no_other() -> None:
    plan = plan_sleep(C, asleep(A, B), warm_only(SIZES), 29)
    assert plan.tier is SwapTier.COLD and plan.stop == ()


def test_a_model_that_does_not_fit_with_its_weights_keeps_its_process() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    assert plan_sleep(C, asleep(), costs, 30) == SleepPlan(SwapTier.RELOAD)
    assert plan_sleep(C, asleep(), costs, PROCESS - 1) == SleepPlan(SwapTier.COLD)


def test_weights_in_host_memory_are_not_worth_the_process_of_another_model() -> None:
    """Keeping C warm saves 3 s more than keeping its process, and costs A its 43 s."""
    costs = {model: lasting(size) for model, size in SIZES.items()}
    assert plan_sleep(C, asleep(A), costs, 40) == SleepPlan(SwapTier.RELOAD)


def test_weights_that_take_long_to_read_are_worth_it() -> None:
    """A and B save 60 s and 59 s when warm; B counts in full, A by half."""
    costs = {A: lasting(30, cold_s=62.0, reload_s=61.0), B: lasting(30, cold_s=61.0, reload_s=60.0)}
    assert plan_sleep(B, asleep(A), costs, 40) == SleepPlan(SwapTier.WARM, stop=(A,))


def test_prefetched_weights_are_evicted_before_any_process() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    use = HostMemoryUse(asleep={A: SwapTier.WARM}, prefetched=(B,))
    assert plan_sleep(C, use, costs, 12 + 32) == SleepPlan(SwapTier.WARM, drop=(B,))


def test_the_model_that_is_woken_next_is_not_evicted() -> None:
    """Regression: the model evicted for the one going to sleep was the one to be woken."""
    costs = warm_only(dict.fromkeys(SIZES, 10))
    assert plan_sleep(B, asleep(A), costs, 15) == SleepPlan(SwapTier.WARM, stop=(A,))
    assert plan_sleep(B, asleep(A), costs, 15, later=(A,)) == SleepPlan(SwapTier.COLD)
    assert plan_sleep(B, asleep(A, C), costs, 25, later=(A,)) == SleepPlan(SwapTier.WARM, stop=(C,))


def test_the_weights_of_the_model_that_is_woken_next_are_kept() -> None:
    costs = {model: lasting(10) for model in SIZES}
    use = HostMemoryUse(asleep={A: SwapTier.WARM}, prefetched=(B,))
    assert plan_sleep(C, use, costs, 12 + 12, later=(A, B)) == SleepPlan(SwapTier.WARM, drop=(B,))
    assert plan_sleep(C, use, costs, 12 + 12, later=(B, A)) == SleepPlan(SwapTier.RELOAD)


def test_a_model_in_the_queue_keeps_its_full_value() -> None:
    costs = warm_only(dict.fromkeys(SIZES, 10))
    assert plan_sleep(B, asleep(A), costs, 15, later=(C,)).stop == (A,)
    assert plan_sleep(B, asleep(A), costs, 15, later=(C, A)) == SleepPlan(SwapTier.COLD)


def test_models_not_in_the_queue_are_evicted_first_then_the_last_in_it() -> None:
    names = [ModelId(name) for name in "abcdef"]
    costs = {name: SwapCost(weights_bytes=10, cold_s=1.0 + 100 * (name == "f")) for name in names}
    use = asleep(*names[:5])
    order = [plan_sleep(names[5], use, costs, 60 - 10 * n, later=(*"cae",)).stop for n in (1, 2, 3, 4)]
    assert order == [("b",), ("b", "d"), ("b", "d", "e"), ("b", "d", "e", "a")]


def test_only_allowed_tiers_are_used() -> None:
    costs = {model: lasting(size) for model, size in SIZES.items()}
    for allowed in ({SwapTier.RELOAD}, {SwapTier.WARM}, set[SwapTier]()):
        tier = next(iter(allowed), SwapTier.COLD)
        assert HostMemory(costs, 1000, allowed).plan_sleep(A).tier is tier


def test_prefetched_weights_count_against_the_memory() -> None:
    memory = HostMemory({model: lasting(size) for model, size in SIZES.items()}, 45)
    memory.slept(A, SwapTier.WARM)
    assert not memory.can_prefetch(A), "it sleeps with its weights already"
    assert memory.can_prefetch(C)
    memory.fetched(C)
    assert not memory.can_prefetch(B)
    memory.dropped(C)
    assert memory.can_prefetch(B)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=2, max_size=6),
    memory=st.integers(0, 200),
    order=st.randoms(use_true_random=False),
)
def test_the_model_woken_next_is_kept_and_the_rest_fits(sizes: list[int], memory: int, order: Random) -> None:
    names = [ModelId(f"m{i}") for i in range(len(sizes))]
    costs = {name: lasting(size) for name, size in zip(names, sizes, strict=True)}
    coming = order.sample(names[1:], order.randint(1, len(names) - 1))
    prefetched = tuple(order.sample(names[1:], order.randint(0, len(names) - 1)))
    use = HostMemoryUse(asleep={name: SwapTier.RELOAD for name in names[1:]}, prefetched=prefetched)
    plan = plan_sleep(names[0], use, costs, memory, later=coming)
    assert coming[0] not in plan.stop + plan.drop
    left = HostMemoryUse(
        asleep={name: tier for name, tier in use.asleep.items() if name not in plan.stop},
        prefetched=tuple(name for name in prefetched if name not in plan.drop),
    )
    if plan.tier is not SwapTier.COLD:
        assert left.bytes(costs) + costs[names[0]].holds_bytes(plan.tier) <= memory


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), memory=st.integers(0, 200))
def test_the_rest_fits(sizes: list[int], memory: int) -> None:
    names = [ModelId(f"m{i}") for i in range(len(sizes))]
    weights = dict(zip(names, sizes, strict=True))
    plan = plan_sleep(names[0], asleep(*names[1:]), warm_only(weights), memory)
    left = [weights[name] for name in names[1:] if name not in plan.stop]
    if plan.tier is SwapTier.WARM:
        assert sum(left) + sizes[0] <= memory
        spared = plan.stop[-1:]
        assert not spared or sum(left) + sizes[0] + weights[spared[0]] > memory
    else:
        assert sizes[0] > memory


def test_an_agent_reports_sleeping_engines_in_the_order_of_their_use() -> None:
    engines = Bench().agent.state.engines
    for model, state in ((N, EngineState.ASLEEP), (M, EngineState.ASLEEP), (N, EngineState.UNLOADED)):
        engines.changed(model, state)
    assert [model for model, state in engines.reported if state.sleeps] == [M, N]
