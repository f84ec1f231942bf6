"""The engines of one simulated instance: at most one awake, others asleep in host memory or not started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qlm.agents.events import EngineChanged
from qlm.agents.host_memory import bed
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
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
        new_engine: Makes the engine, empty and awake.
    """

    profile: Profile
    capacity: EngineCapacity
    new_engine: Callable[[], BatchingEngine]


@dataclass(slots=True)
class SwapCounts:
    """Model changes of one instance so far.

    Attributes:
        warm: From host memory.
        cold: From storage.
        seconds: Spent with no engine awake.
    """

    warm: int = 0
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
        host_memory_bytes: For sleeping models.
        deliver: Told of what engines give.
        changed: Told of engines' states.
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
        changed: Callable[[EngineChanged], None],
        slowness: Callable[[], float],
    ) -> None:
        self.swaps = SwapCounts()
        self.awake: ModelId | None = None
        self.driver: EngineDriver | None = None
        self._timeline = timeline
        self._entity = entity
        self._models = models
        self._host_memory_bytes = host_memory_bytes
        self._deliver = deliver
        self._changed = changed
        self._slowness = slowness
        self._processes: dict[ModelId, _Process] = {}
        self._warm: list[ModelId] = []
        self._dead = False

    def start_awake(self, model: ModelId) -> None:
        """Begin the simulation with a model loaded."""
        self._new_process(model)
        self._serve(model)

    def swap(self, model: ModelId) -> None:
        """Put the awake engine to sleep, and wake or start the other; `changed` is told of each step."""
        began_ns = self._timeline.now_ns
        self._put_to_sleep(lambda: self._bring_up(model, began_ns))

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
        self._warm.clear()

    def _drop_driver(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.driver, self.awake = None, None

    def _put_to_sleep(self, then: Callable[[], None]) -> None:
        model = self.awake
        if model is None:
            then()
            return
        self._drop_driver()
        bedding = bed(model, self._warm, self._weights_bytes(), self._host_memory_bytes)
        for other in bedding.stop:
            self._stop(other)
        process = self._processes[model]
        process.engine.sleep()
        lasts_ns = process.residency.sleep(level=1)

        def asleep() -> None:
            if bedding.keep:
                self._warm.append(model)
                self._changed(EngineChanged(model=model, state=EngineState.ASLEEP))
            else:
                self._stop(model)
            then()

        self._after(lasts_ns, asleep)

    def _stop(self, model: ModelId) -> None:
        del self._processes[model]
        if model in self._warm:
            self._warm.remove(model)
        self._changed(EngineChanged(model=model, state=EngineState.COLD))

    def _bring_up(self, model: ModelId, began_ns: int) -> None:
        process = self._processes.get(model)
        if process is not None:
            self._warm.remove(model)
            self.swaps.warm += 1
            lasts_ns = process.residency.wake()
        else:
            self.swaps.cold += 1
            lasts_ns = self._new_process(model, Residency.COLD).residency.start()

        def up() -> None:
            self.swaps.seconds += (self._timeline.now_ns - began_ns) / 1e9
            self._serve(model)

        self._after(lasts_ns, up)

    def _new_process(self, model: ModelId, state: Residency = Residency.AWAKE) -> _Process:
        hosted = self._models[model]
        process = _Process(hosted.new_engine(), ResidentEngine(hosted.profile, state))
        self._processes[model] = process
        return process

    def _serve(self, model: ModelId) -> None:
        engine = self._processes[model].engine
        engine.wake()
        self.awake = model
        self.driver = EngineDriver(self._timeline, self._entity, engine, self._deliver, self._slowness)
        capacity = self._models[model].capacity
        self._changed(EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity))

    def _after(self, lasts_ns: int, do: Callable[[], None]) -> None:
        def due(_: object) -> None:
            if not self._dead:
                do()

        at_ns = self._timeline.now_ns + round(lasts_ns * self._slowness())
        self._timeline.at(at_ns, Rank.ENGINE, self._entity, due)

    def _weights_bytes(self) -> dict[ModelId, int]:
        return {model: hosted.profile.weights_bytes for model, hosted in self._models.items()}
