"""Prefetch of weights for models later in the virtual queue."""

from collections.abc import Sequence

from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, QueueRead, Tick, WeightsPrefetched
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Action, PrefetchModel, ReleasePrefetch, SwapModel
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.notices import DrainAsked
from qlm.domain.virtual_queue import VirtualQueue
from qlm.rct_estimator.host_memory import SwapCost

A, B, C, D = (ModelId(name) for name in "abcd")
COST = SwapCost(weights_bytes=10, process_bytes=2, warm_s=2.0, reload_s=5.0, cold_s=45.0)
S = 1_000_000_000
CAPACITY = EngineCapacity(kv_tokens=100, block_tokens=1, seqs_max=4, context_tokens=50)


class Bench:
    """An agent with model a awake, and its prefetch actions."""

    def __init__(self, *, host_memory_bytes: int = 100, prefetches: bool = True) -> None:
        costs = OperationCosts(swap=dict.fromkeys((A, B, C, D), COST), host_memory_bytes=host_memory_bytes)
        self.agent = Agent(
            Holder(InstanceId("i"), SessionId("s")), "A10", (A, B, C, D),
            AgentSettings(prefetches=prefetches), costs,
        )  # fmt: skip
        self.changed(A, EngineState.AWAKE)

    def changed(self, model: ModelId, state: EngineState) -> list[Action]:
        capacity = CAPACITY if state is EngineState.AWAKE else None
        return self.kept(self.agent.receive(EngineChanged(model=model, state=state, capacity=capacity), 0))

    def queue(self, *models: ModelId) -> list[Action]:
        groups = tuple(
            Group(id=GroupId(f"g{n}"), cls=RequestClass(model=model, slo="batch"), seq=n, count=5)
            for n, model in enumerate(models)
        )
        read = QueueRead(queue=VirtualQueue(instance=InstanceId("i"), groups=groups))
        return self.kept(self.agent.receive(read, 0))

    def reported(
        self, models: Sequence[ModelId], requested: ModelId | None = None, *, refused: bool = False
    ) -> list[Action]:
        event = WeightsPrefetched(models=tuple(models), requested=requested, refused=refused)
        return self.kept(self.agent.receive(event, 0))

    def kept(self, actions: list[Action]) -> list[Action]:
        return [action for action in actions if isinstance(action, PrefetchModel | ReleasePrefetch)]


def test_weights_are_prefetched_in_queue_order_one_at_a_time() -> None:
    bench = Bench()
    assert bench.queue(A, C, B, C) == [PrefetchModel(model=C)]
    assert bench.queue(A, C, B, C) == [], "one is under way"
    assert bench.reported([C]) == [], "that was no answer"
    assert bench.reported([C], C) == [PrefetchModel(model=B)]
    assert bench.reported([C, B], B) == []


def test_a_model_asleep_without_weights_is_prefetched_and_a_warm_one_is_not() -> None:
    bench = Bench()
    bench.changed(B, EngineState.ASLEEP)
    bench.changed(C, EngineState.UNLOADED)
    assert bench.queue(A, B, C) == [PrefetchModel(model=C)]


def test_host_memory_bounds_prefetched_weights() -> None:
    bench = Bench(host_memory_bytes=25)
    bench.changed(D, EngineState.ASLEEP)
    assert bench.queue(A, B, C) == [PrefetchModel(model=B)]
    assert bench.reported([B], B) == [], "12 sleep, 10 are held"


def test_prefetched_weights_not_in_the_queue_are_dropped_for_those_that_are() -> None:
    bench = Bench(host_memory_bytes=15)
    assert bench.queue(A, B) == [PrefetchModel(model=B)]
    assert bench.reported([B], B) == []
    assert bench.queue(A, C, B) == [ReleasePrefetch(model=B)]
    assert bench.reported([], B) == [PrefetchModel(model=C)]
    assert bench.reported([C], C) == [], "its turn is before b's"


def test_a_refused_prefetch_is_not_repeated_until_host_memory_changes() -> None:
    bench = Bench()
    assert bench.queue(A, B) == [PrefetchModel(model=B)]
    assert bench.reported([], B, refused=True) == []
    assert bench.queue(A, B) == []
    assert bench.changed(D, EngineState.COLD) == [PrefetchModel(model=B)]


def test_nothing_is_prefetched_when_switched_off_or_draining() -> None:
    assert Bench(prefetches=False).queue(A, B) == []
    bench = Bench()
    bench.agent.receive(DrainAsked(), 0)
    assert bench.queue(A, B) == []


def test_a_swap_names_the_models_that_come_later() -> None:
    bench = Bench()
    groups = tuple(
        Group(id=GroupId(f"g{n}"), cls=RequestClass(model=model, slo="batch"), seq=n, count=5)
        for n, model in enumerate((B, D, A, B, C))
    )
    read = QueueRead(queue=VirtualQueue(instance=InstanceId("i"), groups=groups))
    actions = [*bench.agent.receive(read, 0), *bench.agent.receive(Tick(), 10 * S)]
    assert SwapModel(model=B, later=(D, C)) in actions
