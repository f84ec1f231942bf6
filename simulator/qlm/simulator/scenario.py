"""Scenario of a simulation: fleet, models, objectives, faults and requests, as values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.slo import OnMiss, Slo
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.host_cache import PROACTIVE, KvOffloading
from qlm.simulator.seeds import Seeds
from qlm.simulator.tasks import MakeCallObjectives, TaskCalls

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """An objective with its name in reports.

    Attributes:
        name: As results show it.
        slo: The objective.
        priority: Priority of its requests; lower goes first.
        on_miss: Treatment of late requests.
    """

    name: str
    slo: Slo
    priority: int = 0
    on_miss: OnMiss = OnMiss.SERVE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Requests of one run as columns, shape (requests,) each, in order of arrival.

    Attributes:
        arrival_ns: Nanoseconds from the start of the simulation; never decreases. For a later call of a task,
            that of the task's first call.
        model: Index in `Scenario.models`.
        tenant: Index in `tenants`.
        slo_class: Index in `Scenario.slo_classes`.
        prompt_tokens: 1 or more.
        output_tokens: Length of the answer without a limit; 1 or more.
        max_tokens: The client's limit; 1 or more.
        tenants: Names of tenants.
        prefixes: Ids of each prompt's shared blocks of `engine.generation.PREFIX_TOKENS` tokens; equal ids
            mean equal content. Empty if no prompts share anything.
        prefix_tokens: Tokens that the ids of each prompt cover; None for whole blocks.
        tasks: Tasks whose calls the requests are; None if each request is alone.
    """

    arrival_ns: IntArray
    model: IntArray
    tenant: IntArray
    slo_class: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    tenants: tuple[str, ...] = ("default",)
    prefixes: tuple[tuple[int, ...], ...] = ()
    prefix_tokens: IntArray | None = None
    tasks: TaskCalls | None = None

    def __post_init__(self) -> None:
        others = ("tenants", "prefixes", "prefix_tokens", "tasks")
        columns = [f.name for f in fields(self) if f.name not in others]
        for name in columns:
            if getattr(self, name).shape != self.arrival_ns.shape:
                raise InvalidValueError(name, getattr(self, name).shape, f"shape {self.arrival_ns.shape}")
        if self.prefixes and len(self.prefixes) != len(self):
            raise InvalidValueError("prefixes", len(self.prefixes), f"{len(self)} or none")
        if self.prefix_tokens is not None and len(self.prefix_tokens) != len(self.prefixes):
            raise InvalidValueError("prefix_tokens", len(self.prefix_tokens), f"{len(self.prefixes)}")
        if self.tasks is not None and len(self.tasks) != len(self):
            raise InvalidValueError("tasks", len(self.tasks), f"{len(self)}")
        if len(self) and (self.arrival_ns[0] < 0 or np.any(np.diff(self.arrival_ns) < 0)):
            raise InvalidValueError("arrival_ns", self.arrival_ns.tolist()[:5], "0 or more, never falling")
        for name in ("prompt_tokens", "output_tokens", "max_tokens"):
            if np.any(getattr(self, name) < 1):
                raise InvalidValueError(name, int(getattr(self, name).min()), "1 or more")

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def first(self, requests: int) -> "Workload":
        """Return its first requests."""
        columns = (
            (f.name, getattr(self, f.name)) for f in fields(self) if f.name not in ("tenants", "tasks")
        )
        cut = {name: each[:requests] for name, each in columns if each is not None}
        return replace(self, **cut, tasks=None if self.tasks is None else self.tasks.first(requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedInstance:
    """LLM serving instance.

    Attributes:
        kind: Key of `Scenario.fleet.kinds`.
        models: Models that it may serve.
        awake: Model that is awake at the start; None for the first.
        swap_tiers: Tiers in which models may sleep.
        batching: Batch policy of its engines; None for the engine's own rule, which `fcfs` equals.
        aborts: Its agent hosts that policy, by aborts; else the engines host it.
    """

    id: InstanceId
    kind: str
    models: tuple[ModelId, ...]
    awake: ModelId | None = None
    swap_tiers: tuple[SwapTier, ...] = (SwapTier.WARM, SwapTier.RELOAD)
    batching: str | None = None
    aborts: bool = False

    @property
    def engine_batching(self) -> str | None:
        """Batch policy that its engines host; None for their own rule."""
        return None if self.aborts else self.batching


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Round trips between processes, seconds, the servers' own work included.

    Attributes:
        store_s: Operation of the shared state.
        broker_s: Publish with its confirm, or pull.
        notice_s: One-way delay of a notice.
    """

    store_s: float = 0.001
    broker_s: float = 0.002
    notice_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInstance:
    """Kills an agent with its engine; both restart, cold, `down_s` later."""

    at_s: float
    instance: InstanceId
    down_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillEngine:
    """Kills the awake engine; its agent restarts it."""

    at_s: float
    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowInstance:
    """Slows an instance's engines down by `factor` for `for_s` seconds."""

    at_s: float
    instance: InstanceId
    for_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseController:
    """Stops planning for `for_s` seconds."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutage:
    """Disconnects the shared state for `for_s` seconds."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOutage:
    """Disconnects the broker for `for_s` seconds: nothing is accepted, pulled or acknowledged."""

    at_s: float
    for_s: float


Fault = KillInstance | KillEngine | SlowInstance | PauseController | StoreOutage | BrokerOutage


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTraffic:
    """Requests before the simulation, which the controller has learned from.

    Attributes:
        make_workload: Draws them from a seed.
        age_s: Time from the last of them to the start of the simulation.
    """

    make_workload: Callable[[Seeds], Workload]
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """Input of a simulation besides policy and seed.

    Attributes:
        name: Name in reports.
        fleet: Costs and speeds as the controller and the agents know them.
        make_workload: Draws the requests of a seed.
        call_objectives: Chooses the objectives of calls of tasks; None for those of their classes.
        past: Requests that the controller has learned from; None for a new installation.
        true_profiles: Profiles by which engines run, where they differ from those of the fleet.
        capacity_rps: Requests per second that load 1.0 stands for, if known.
        queue_depth_max: Number of waiting requests above which new ones are refused (429).
        host_kv_bytes: Host memory per instance for offloaded KV blocks; 0 for none.
        kv_offloading: Rules of copying KV blocks there and back.
        append_interval_s: Interval at which tokens are written to the output log.
        horizon_s: Latest end of the simulation; requests that are unfinished then count as missed, and those
            that have not arrived do not count.
        warm_up_s: Start of the simulation: what arrives in it is left out of attainment and latencies.
    """

    name: str
    models: tuple[ModelSpec, ...]
    instances: tuple[SimulatedInstance, ...]
    fleet: Fleet
    slo_classes: tuple[SloClass, ...]
    make_workload: Callable[[Seeds], Workload]
    call_objectives: MakeCallObjectives | None = None
    past: PastTraffic | None = None
    true_profiles: Mapping[tuple[ModelId, str], Profile] = field(default_factory=dict)
    capacity_rps: float | None = None
    network: Network = Network()
    faults: tuple[Fault, ...] = ()
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    queue_depth_max: int = 1_000_000
    host_kv_bytes: int = 0
    kv_offloading: KvOffloading = PROACTIVE
    append_interval_s: float = 1.0
    horizon_s: float | None = None
    warm_up_s: float = 0.0

    def true_profile(self, model: ModelId, kind: str) -> Profile:
        """Return the profile by which engines of a model run on a kind of accelerator."""
        return self.true_profiles.get((model, kind)) or self.fleet.profiles[model, kind]
