"""Models later in the virtual queue are brought into host memory while it lasts."""

from collections.abc import Sequence

from qlm.agents.events import EngineChanged, HeldAhead, QueueRead, Tick
from qlm.agents.host_memory import SwapCost
from qlm.agents.operation_costs import OperationCosts
from qlm.agents.protocol import AgentProtocol, AgentSettings
from qlm.domain.actions import Action, CoolModel, SwapModel, WarmModel
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.notices import DrainAsked
from qlm.domain.virtual_queue import VirtualQueue

A, B, C, D = (ModelId(name) for name in "abcd")
COST = SwapCost(weights_bytes=10, process_bytes=2, warm_s=2.0, reload_s=5.0, cold_s=45.0)
S = 1_000_000_000
CAPACITY = EngineCapacity(kv_tokens=100, block_tokens=1, seqs_max=4, context_tokens=50)


class Bench:
    """An agent with model a awake, and what it asks of host memory."""

    def __init__(self, *, host_memory_bytes: int = 100, warms_ahead: bool = True) -> None:
        costs = OperationCosts(swap=dict.fromkeys((A, B, C, D), COST), host_memory_bytes=host_memory_bytes)
        self.agent = AgentProtocol(
            Holder(InstanceId("i"), SessionId("s")), "A10", (A, B, C, D),
            AgentSettings(warms_ahead=warms_ahead), costs,
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

    def told(
        self, models: Sequence[ModelId], answered: ModelId | None = None, *, refused: bool = False
    ) -> list[Action]:
        event = HeldAhead(models=tuple(models), answered=answered, refused=refused)
        return self.kept(self.agent.receive(event, 0))

    def kept(self, actions: list[Action]) -> list[Action]:
        return [action for action in actions if isinstance(action, WarmModel | CoolModel)]


def test_models_are_warmed_in_the_order_of_their_turns_one_at_a_time() -> None:
    bench = Bench()
    assert bench.queue(A, C, B, C) == [WarmModel(model=C)]
    assert bench.queue(A, C, B, C) == [], "one is under way"
    assert bench.told([C]) == [], "that was no answer"
    assert bench.told([C], C) == [WarmModel(model=B)]
    assert bench.told([C, B], B) == []


def test_a_model_that_sleeps_warm_needs_nothing_and_one_without_weights_does() -> None:
    bench = Bench()
    bench.changed(B, EngineState.ASLEEP)
    bench.changed(C, EngineState.UNLOADED)
    assert bench.queue(A, B, C) == [WarmModel(model=C)]


def test_host_memory_bounds_what_is_held_ahead() -> None:
    bench = Bench(host_memory_bytes=25)
    bench.changed(D, EngineState.ASLEEP)
    assert bench.queue(A, B, C) == [WarmModel(model=B)]
    assert bench.told([B], B) == [], "12 sleep, 10 are held"


def test_what_has_no_turn_makes_room_for_what_has_one() -> None:
    bench = Bench(host_memory_bytes=15)
    assert bench.queue(A, B) == [WarmModel(model=B)]
    assert bench.told([B], B) == []
    assert bench.queue(A, C, B) == [CoolModel(model=B)]
    assert bench.told([], B) == [WarmModel(model=C)]
    assert bench.told([C], C) == [], "its turn is before b's"


def test_what_cannot_be_held_is_not_asked_for_until_host_memory_changes() -> None:
    bench = Bench()
    assert bench.queue(A, B) == [WarmModel(model=B)]
    assert bench.told([], B, refused=True) == []
    assert bench.queue(A, B) == []
    assert bench.changed(D, EngineState.COLD) == [WarmModel(model=B)]


def test_nothing_is_warmed_where_it_is_switched_off_or_the_instance_drains() -> None:
    assert Bench(warms_ahead=False).queue(A, B) == []
    bench = Bench()
    bench.agent.receive(DrainAsked(), 0)
    assert bench.queue(A, B) == []


def test_whoever_swaps_models_is_told_whose_turns_come_later() -> None:
    bench = Bench()
    groups = tuple(
        Group(id=GroupId(f"g{n}"), cls=RequestClass(model=model, slo="batch"), seq=n, count=5)
        for n, model in enumerate((B, D, A, B, C))
    )
    read = QueueRead(queue=VirtualQueue(instance=InstanceId("i"), groups=groups))
    actions = [*bench.agent.receive(read, 0), *bench.agent.receive(Tick(), 10 * S)]
    assert SwapModel(model=B, later=(D, C)) in actions
