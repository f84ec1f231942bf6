"""The engines of one simulated instance: at most one awake, others asleep in host memory or not started."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from qlm.agents.events import EngineChanged, HeldAhead
from qlm.agents.host_memory import ALL_TIERS, ASLEEP_AS, HostMemory, SwapCost
from qlm.agents.kv_swap import KvSwapCost
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.residency import Residency, ResidentEngine
from qlm.simulator.world.engine_driver import Deliver, EngineDriver
from qlm.simulator.world.timeline import Rank, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A model that an instance can serve.

    Attributes:
        profile: Its speed and the times of its swaps there.
        capacity: Of its engine.
        cost: What it holds and saves while it sleeps.
        kv_cost: Of bringing the KV cache of its requests back.
        new_engine: Makes the engine, empty and awake.
    """

    profile: Profile
    capacity: EngineCapacity
    cost: SwapCost
    kv_cost: KvSwapCost
    new_engine: Callable[[], BatchingEngine]


@dataclass(slots=True)
class SwapCounts:
    """Model changes of one instance so far.

    Attributes:
        warm: From host memory.
        reload: From storage, into a live process.
        cold: From nothing.
        seconds: Spent with no engine awake.
    """

    warm: int = 0
    reload: int = 0
    cold: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Process:
    """The engine process of one model."""

    engine: BatchingEngine
    residency: ResidentEngine


class SimulatedHost:
    """Engines by model; what `agents.engine_host.ModelHost` is for real ones.

    Args:
        timeline: Virtual time.
        entity: Number of the instance.
        models: What it can serve.
        host_memory_bytes: For sleeping models and weights files held ahead of their turn.
        deliver: Told of what engines give.
        changed: Told of engines' states, and of what is held ahead.
        tiers: In which models may sleep.
        slowness: Factor on all times at present.
    """

    def __init__(
        self,
        timeline: Timeline,
        entity: int,
        models: Mapping[ModelId, HostedModel],
        *,
        host_memory_bytes: int,
        deliver: Deliver,
        changed: Callable[[EngineChanged | HeldAhead], None],
        slowness: Callable[[], float],
        tiers: Collection[SwapTier] = ALL_TIERS,
    ) -> None:
        self.swaps = SwapCounts()
        self.awake: ModelId | None = None
        self.driver: EngineDriver | None = None
        self._timeline = timeline
        self._entity = entity
        self._models = models
        costs = {model: hosted.cost for model, hosted in models.items()}
        self._memory = HostMemory(costs, host_memory_bytes, tiers)
        self._fetched: set[ModelId] = set()
        self._deliver = deliver
        self._changed = changed
        self._slowness = slowness
        self._processes: dict[ModelId, _Process] = {}
        self._dead = False

    def start_awake(self, model: ModelId) -> None:
        """Begin the simulation with a model loaded."""
        self._new_process(model)
        self._serve(model)

    def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> None:
        """Put the awake engine to sleep, and wake or start the other; `changed` is told of each step."""
        began_ns = self._timeline.now_ns
        self._put_to_sleep((model, *later), lambda: self._bring_up(model, began_ns))

    def warm(self, model: ModelId) -> None:
        """Read a model's weights files into host memory, if there is room; `changed` is told."""
        if self.awake == model or not self._memory.has_room_ahead(model):
            self._changed(self._ahead(model, refused=True))
            return
        self._memory.fetched(model)

        def read() -> None:
            if model in self._memory.ahead:
                self._fetched.add(model)
            self._changed(self._ahead(model, refused=model not in self._memory.ahead))

        self._after(round(self._models[model].profile.swap_reload_s * 1e9), read)

    def cool(self, model: ModelId) -> None:
        """Let go of weights files; `changed` is told."""
        self._drop(model)
        self._changed(self._ahead(model))

    def kill_awake(self) -> None:
        """Let the awake engine's process die."""
        model = self.awake
        if model is None:
            return
        self._drop_driver()
        del self._processes[model]
        self._changed(EngineChanged(model=model, state=EngineState.FAILED, error="the engine process died"))

    def close(self) -> None:
        """Let everything die, whatever is under way."""
        self._dead = True
        self._drop_driver()
        self._processes.clear()

    def _drop_driver(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.driver, self.awake = None, None

    def _put_to_sleep(self, coming: Sequence[ModelId], then: Callable[[], None]) -> None:
        model = self.awake
        if model is None:
            then()
            return
        self._drop_driver()
        bedding = self._memory.bed(model, coming)
        # Noted before it is so: files read ahead meanwhile must not take the room.
        self._memory.slept(model, bedding.tier)
        for other in bedding.drop:
            self._drop(other)
        if bedding.drop:
            self._changed(self._ahead())
        for other in bedding.stop:
            self._stop(other)
        tier, process = bedding.tier, self._processes[model]
        process.engine.sleep()
        lasts_ns = process.residency.sleep(level=2 if tier is SwapTier.RELOAD else 1)

        def asleep() -> None:
            if tier is SwapTier.COLD:
                self._stop(model)
            else:
                self._changed(EngineChanged(model=model, state=ASLEEP_AS[tier]))
            then()

        self._after(lasts_ns, asleep)

    def _stop(self, model: ModelId) -> None:
        del self._processes[model]
        self._memory.gone(model)
        self._changed(EngineChanged(model=model, state=EngineState.COLD))

    def _drop(self, model: ModelId) -> None:
        self._memory.dropped(model)
        self._fetched.discard(model)

    def _ahead(self, answered: ModelId | None = None, *, refused: bool = False) -> HeldAhead:
        return HeldAhead(models=tuple(self._memory.ahead), answered=answered, refused=refused)

    def _bring_up(self, model: ModelId, began_ns: int) -> None:
        process, tier = self._processes.get(model), self._memory.tier(model)
        if process is not None:
            lasts_ns = process.residency.wake()
        else:
            lasts_ns = self._new_process(model, Residency.COLD).residency.start()
        self._memory.gone(model)
        self.swaps.warm += tier is SwapTier.WARM
        self.swaps.reload += tier is SwapTier.RELOAD
        self.swaps.cold += tier is SwapTier.COLD
        if model in self._memory.ahead:
            self._drop(model)
            self._changed(self._ahead())

        def up() -> None:
            self.swaps.seconds += (self._timeline.now_ns - began_ns) / 1e9
            self._serve(model, tier)

        self._after(lasts_ns, up)

    def _new_process(self, model: ModelId, state: Residency = Residency.AWAKE) -> _Process:
        hosted = self._models[model]
        residency = ResidentEngine(hosted.profile, state, in_page_cache=lambda: model in self._fetched)
        process = _Process(hosted.new_engine(), residency)
        self._processes[model] = process
        return process

    def _serve(self, model: ModelId, tier: SwapTier | None = None) -> None:
        engine = self._processes[model].engine
        engine.wake()
        self.awake = model
        self.driver = EngineDriver(self._timeline, self._entity, engine, self._deliver, self._slowness)
        capacity = self._models[model].capacity
        self._changed(EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity, tier=tier))

    def _after(self, lasts_ns: int, do: Callable[[], None]) -> None:
        def due(_: object) -> None:
            if not self._dead:
                do()

        at_ns = self._timeline.now_ns + round(lasts_ns * self._slowness())
        self._timeline.at(at_ns, Rank.ENGINE, self._entity, due)
