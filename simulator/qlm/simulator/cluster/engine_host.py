"""Engines of one simulated instance: at most one awake, the others asleep in host memory or stopped."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.host_memory import ASLEEP_AS, HostMemory
from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, WeightsPrefetched
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import ALL_TIERS, SwapCost
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.cluster.engine_driver import EngineDriver, OnOutput
from qlm.simulator.cluster.event_queue import EventQueue, Rank
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.model import EngineCounters
from qlm.simulator.engine.residency import Residency, ResidentEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A model that an instance can serve.

    Attributes:
        profile: Profile by which its engines run.
        cost: Host memory that it takes while asleep, and time that this saves, as agents expect.
        kv_cost: Expected cost of loading its requests' KV cache from host memory.
        speed: Expected bounds of its durations.
        expected: Profile that agents expect.
        new_engine: Creates the engine, empty and awake.
    """

    profile: Profile
    capacity: EngineCapacity
    cost: SwapCost
    kv_cost: KvSwapCost
    speed: EngineSpeed
    expected: Profile
    new_engine: Callable[[], BatchingEngine]


def operation_costs(models: Mapping[ModelId, HostedModel], host_memory_bytes: int) -> OperationCosts:
    """Return the costs of operations on an instance with these models."""
    return OperationCosts(
        swap={model: hosted.cost for model, hosted in models.items()},
        kv={model: hosted.kv_cost for model, hosted in models.items()},
        speed={model: hosted.speed for model, hosted in models.items()},
        profiles={model: hosted.expected for model, hosted in models.items()},
        host_memory_bytes=host_memory_bytes,
    )


@dataclass(slots=True)
class SwapCounts:
    """Ended model swaps of one instance so far, by tier.

    Attributes:
        seconds: Time without an awake engine.
    """

    warm: int = 0
    reload: int = 0
    cold: int = 0
    seconds: float = 0.0

    def ended(self, tier: SwapTier, took_s: float) -> None:
        """Count a swap."""
        self.warm += tier is SwapTier.WARM
        self.reload += tier is SwapTier.RELOAD
        self.cold += tier is SwapTier.COLD
        self.seconds += took_s


@dataclass(slots=True, eq=False)
class _Operation:
    """An operation in progress, such as a start.

    Attributes:
        do: Called at its end.
        left_ns: What was left of it at `since_ns`, by its profile.
        slowness: Factor on that since then.
        version: Number of its end that counts; ends that were scheduled before count no longer.
    """

    do: Callable[[], None]
    left_ns: float
    since_ns: int
    slowness: float
    version: int = 0


@dataclass(slots=True)
class _Process:
    """The engine process of one model."""

    engine: BatchingEngine
    residency: ResidentEngine


class SimulatedEngineHost:
    """Engines by model, in virtual time; `agents.engines.model_host.ModelHost` is its real counterpart.

    Args:
        entity: Number of the instance.
        host_memory_bytes: Memory for sleeping models and prefetched weights files.
        on_change: Receives every change of an engine's state and of the prefetched weights.
        tiers: Allowed sleep tiers.
        slowness: Returns the current factor on all durations.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        entity: int,
        models: Mapping[ModelId, HostedModel],
        *,
        host_memory_bytes: int,
        on_output: OnOutput,
        on_change: Callable[[EngineChanged | WeightsPrefetched], None],
        slowness: Callable[[], float],
        tiers: Collection[SwapTier] = ALL_TIERS,
    ) -> None:
        self.swaps = SwapCounts()
        self.awake: ModelId | None = None
        self.driver: EngineDriver | None = None
        self._event_queue = event_queue
        self._entity = entity
        self._models = models
        costs = {model: hosted.cost for model, hosted in models.items()}
        self._memory = HostMemory(costs, host_memory_bytes, tiers)
        self._fetched: set[ModelId] = set()
        self._on_output = on_output
        self._on_change = on_change
        self._slowness = slowness
        self._processes: dict[ModelId, _Process] = {}
        self._counters: list[EngineCounters] = []
        self._operations: list[_Operation] = []
        self._dead = False

    @property
    def prefix_hits(self) -> int:
        """Prompt tokens that the prefix caches of its engines held, those that have ended included."""
        return sum(counters.prefix_hits for counters in self._counters)

    def start_awake(self, model: ModelId) -> None:
        """Start a model's engine in no time, at the start of the simulation."""
        self._new_process(model)
        self._serve(model)

    def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> None:
        """Put the awake engine to sleep, then wake or start the other; `on_change` receives each step."""
        began_ns = self._event_queue.now_ns
        self._put_to_sleep((model, *later), lambda: self._bring_up(model, began_ns))

    def prefetch(self, model: ModelId) -> None:
        """Read a model's weights files into host memory, if they fit; `on_change` receives the result."""
        if self.awake == model or not self._memory.can_prefetch(model):
            # Later, as all answers of a host: the agent asks for the next model at once.
            self._after(0, lambda: self._on_change(self._prefetched(model, refused=True)))
            return
        self._memory.fetched(model)

        def read() -> None:
            if model in self._memory.prefetched:
                self._fetched.add(model)
            self._on_change(self._prefetched(model, refused=model not in self._memory.prefetched))

        self._after(round(self._models[model].profile.swap_reload_s * 1e9), read)

    def drop_prefetched(self, model: ModelId) -> None:
        """Release prefetched weights files; `on_change` receives the result."""
        self._drop(model)
        self._on_change(self._prefetched(model))

    def kill_awake(self, reason: str = "the engine process died") -> None:
        """Kill the awake engine's process."""
        model = self.awake
        if model is None:
            return
        self._drop_driver()
        del self._processes[model]
        self._on_change(EngineChanged(model=model, state=EngineState.FAILED, error=reason))

    def change_pace(self) -> None:
        """Go on at the present slowness: operations at once, the engine from its next iteration on."""
        for operation in self._operations:
            self._change_pace(operation)
        if self.driver is not None:
            self.driver.change_pace()

    def close(self) -> None:
        """Kill all engines at once, and cancel operations in progress."""
        self._dead = True
        self._drop_driver()
        self._processes.clear()

    def _drop_driver(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.driver, self.awake = None, None

    def _put_to_sleep(self, later: Sequence[ModelId], on_asleep: Callable[[], None]) -> None:
        model = self.awake
        if model is None:
            on_asleep()
            return
        self._drop_driver()
        plan = self._memory.plan_sleep(model, later)
        # Record it before it is done: a concurrent prefetch must not take the memory.
        self._memory.slept(model, plan.tier)
        for other in plan.drop:
            self._drop(other)
        if plan.drop:
            self._on_change(self._prefetched())
        for other in plan.stop:
            self._stop(other)
        tier, process = plan.tier, self._processes[model]
        process.engine.sleep()
        lasts_ns = process.residency.sleep(level=2 if tier is SwapTier.RELOAD else 1)

        def asleep() -> None:
            if tier is SwapTier.COLD:
                self._stop(model)
            else:
                self._on_change(EngineChanged(model=model, state=ASLEEP_AS[tier]))
            on_asleep()

        self._after(lasts_ns, asleep)

    def _stop(self, model: ModelId) -> None:
        del self._processes[model]
        self._memory.gone(model)
        self._on_change(EngineChanged(model=model, state=EngineState.COLD))

    def _drop(self, model: ModelId) -> None:
        self._memory.dropped(model)
        self._fetched.discard(model)

    def _prefetched(self, requested: ModelId | None = None, *, refused: bool = False) -> WeightsPrefetched:
        return WeightsPrefetched(models=tuple(self._memory.prefetched), requested=requested, refused=refused)

    def _bring_up(self, model: ModelId, began_ns: int) -> None:
        process, tier = self._processes.get(model), self._memory.tier(model)
        if process is not None:
            lasts_ns = process.residency.wake()
        else:
            lasts_ns = self._new_process(model, Residency.COLD).residency.start()
        self._memory.gone(model)
        if model in self._memory.prefetched:
            self._drop(model)
            self._on_change(self._prefetched())

        def up() -> None:
            self.swaps.ended(tier, (self._event_queue.now_ns - began_ns) / 1e9)
            self._serve(model, tier)

        self._after(lasts_ns, up)

    def _new_process(self, model: ModelId, state: Residency = Residency.AWAKE) -> _Process:
        hosted = self._models[model]
        residency = ResidentEngine(hosted.profile, state, in_page_cache=lambda: model in self._fetched)
        process = _Process(hosted.new_engine(), residency)
        self._counters.append(process.engine.counters)
        self._processes[model] = process
        return process

    def _serve(self, model: ModelId, tier: SwapTier | None = None) -> None:
        engine = self._processes[model].engine
        engine.wake()
        self.awake = model
        hosted = self._models[model]
        self.driver = EngineDriver(
            self._event_queue,
            self._entity,
            engine,
            self._on_output,
            self._slowness,
            hosted.profile.request_ns,
        )
        capacity = hosted.capacity
        self._on_change(EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity, tier=tier))

    def _after(self, lasts_ns: int, do: Callable[[], None]) -> None:
        now_ns, slowness = self._event_queue.now_ns, self._slowness()
        operation = _Operation(do=do, left_ns=lasts_ns, since_ns=now_ns, slowness=slowness)
        self._operations.append(operation)
        self._schedule_end(operation)

    def _change_pace(self, operation: _Operation) -> None:
        """Do what is left of an operation at the present pace."""
        now_ns = self._event_queue.now_ns
        operation.left_ns = max(0.0, operation.left_ns - (now_ns - operation.since_ns) / operation.slowness)
        operation.since_ns, operation.slowness = now_ns, self._slowness()
        operation.version += 1
        self._schedule_end(operation)

    def _schedule_end(self, operation: _Operation) -> None:
        def end(version: int) -> None:
            if version == operation.version and not self._dead:
                self._operations.remove(operation)
                operation.do()

        at_ns = operation.since_ns + round(operation.left_ns * operation.slowness)
        self._event_queue.schedule(at_ns, Rank.ENGINE, self._entity, end, operation.version)
