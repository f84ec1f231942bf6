"""What is simulated, as values: fleet, models, objectives, faults, and the requests that come."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from qlm.controller.fleet import Fleet
from qlm.controller.protocol import ControllerSettings
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.slo import OnMiss, Slo
from qlm.simulator.seeds import Seeds

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """An objective with its name in reports.

    Attributes:
        name: As results show it.
        slo: The objective.
        priority: Of its requests; lower goes first.
        on_miss: Whether late requests are still served.
    """

    name: str
    slo: Slo
    priority: int = 0
    on_miss: OnMiss = OnMiss.SERVE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """The requests of one run as columns, shape (requests,) each, in order of arrival.

    Attributes:
        arrival_ns: From the start of the simulation; never falls.
        model: Index in `Scenario.models`.
        tenant: Index in `tenants`.
        slo_class: Index in `Scenario.slo_classes`.
        prompt_tokens: 1 or more.
        output_tokens: Length of the answer if nothing cuts it off; 1 or more.
        max_tokens: Limit that the client sets; 1 or more.
        tenants: Names of the tenants.
        prefixes: Per request the ids of its prompt's shared blocks of `PREFIX_TOKENS` tokens, which
            `engine.generation` names (equal ids, equal content); empty if no prompts share anything.
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

    def __post_init__(self) -> None:
        columns = [f.name for f in fields(self) if f.name not in ("tenants", "prefixes")]
        for name in columns:
            if getattr(self, name).shape != self.arrival_ns.shape:
                raise InvalidValueError(name, getattr(self, name).shape, f"shape {self.arrival_ns.shape}")
        if self.prefixes and len(self.prefixes) != len(self):
            raise InvalidValueError("prefixes", len(self.prefixes), f"{len(self)} or none")
        if len(self) and (self.arrival_ns[0] < 0 or np.any(np.diff(self.arrival_ns) < 0)):
            raise InvalidValueError("arrival_ns", self.arrival_ns.tolist()[:5], "0 or more, never falling")
        for name in ("prompt_tokens", "output_tokens", "max_tokens"):
            if np.any(getattr(self, name) < 1):
                raise InvalidValueError(name, int(getattr(self, name).min()), "1 or more")

    def __len__(self) -> int:
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedInstance:
    """One LLM serving instance.

    Attributes:
        id: Its name.
        kind: Kind of accelerator, a key of `Scenario.fleet.kinds`.
        models: Models it may serve; the first is awake at the start.
        swap_tiers: In which models may sleep.
    """

    id: InstanceId
    kind: str
    models: tuple[ModelId, ...]
    swap_tiers: tuple[SwapTier, ...] = (SwapTier.WARM, SwapTier.RELOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Round trips between the parts, seconds; what the work itself takes is included.

    Attributes:
        store_s: A step of the shared state.
        broker_s: A publish with its confirm, or a pull.
        notice_s: From a change to whoever is told of it; one way.
    """

    store_s: float = 0.001
    broker_s: float = 0.002
    notice_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInstance:
    """The agent dies with its engine; both are back `down_s` later, cold."""

    at_s: float
    instance: InstanceId
    down_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillEngine:
    """The awake engine dies under its agent, which starts it again."""

    at_s: float
    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowInstance:
    """The instance's engines take `factor` times as long, for a while."""

    at_s: float
    instance: InstanceId
    for_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseController:
    """Nobody plans for a while."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutage:
    """The shared state cannot be reached for a while."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOutage:
    """The global queue cannot be reached for a while: nothing is accepted, pulled or acknowledged."""

    at_s: float
    for_s: float


Fault = KillInstance | KillEngine | SlowInstance | PauseController | StoreOutage | BrokerOutage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """Everything about a simulation but its policy and its seed.

    Attributes:
        name: In reports.
        models: What is served.
        instances: By what.
        fleet: Costs and speeds, as the controller knows them; engines run by the same profiles.
        slo_classes: Objectives.
        make_workload: Draws the requests of a seed.
        network: Latencies.
        faults: What goes wrong, and when.
        controller: Settings of the controller.
        queue_depth_max: Waiting requests beyond which new ones are refused (429).
        host_kv_bytes: Host memory per instance to which KV blocks are offloaded; 0 for none.
        append_interval_s: How often tokens in mid-answer are written to the output log.
        horizon_s: The simulation ends here at the latest; what is unfinished then counts as missed.
    """

    name: str
    models: tuple[ModelSpec, ...]
    instances: tuple[SimulatedInstance, ...]
    fleet: Fleet
    slo_classes: tuple[SloClass, ...]
    make_workload: Callable[[Seeds], Workload]
    network: Network = Network()
    faults: tuple[Fault, ...] = ()
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    queue_depth_max: int = 1_000_000
    host_kv_bytes: int = 0
    append_interval_s: float = 1.0
    horizon_s: float | None = None
