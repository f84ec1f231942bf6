"""The placement problem: rates and costs of models, and the instances that may serve them. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.ids import InstanceId, ModelId

BATCH_WEIGHT: Final = 0.05
"""Weight of a request without an objective, in requests with one."""

Placement = tuple[frozenset[ModelId], ...]
"""Models of each instance, in the order of `PlacementProblem.instances`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOnKind:
    """A model on one kind of accelerator.

    Attributes:
        service_s: Instance time per request: mean time between two ends in a full batch.
        answer_s: Mean time from a batch slot to the end of an answer.
        recompute_s: Time to compute again what an evicted request has.
        warm_s: Swap from host memory.
        reload_s: Swap from storage in a live process.
        cold_s: Start from nothing.
        weights_bytes: Host memory while it sleeps with its weights.
    """

    service_s: float
    answer_s: float
    recompute_s: float
    warm_s: float
    reload_s: float
    cold_s: float
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Expected arrivals for a model.

    Attributes:
        objectives: Pairs of slack in seconds and requests per second. The slack is the objective less the
            time from a start to what it is about.
        batch_rps: Requests per second without an objective.
        waiting: Waiting requests that can still meet their objective.
        kinds: The model on each kind that can run it.
    """

    objectives: tuple[tuple[float, float], ...] = ()
    batch_rps: float = 0.0
    waiting: int = 0
    kinds: Mapping[str, ModelOnKind] = field(default_factory=dict)

    @property
    def rate_rps(self) -> float:
        """All requests per second."""
        return self.batch_rps + sum(rate for _objective, rate in self.objectives)

    @property
    def worth_rps(self) -> float:
        """Requests per second by what it is worth to answer them in time."""
        return BATCH_WEIGHT * self.batch_rps + sum(rate for _objective, rate in self.objectives)

    def lost_rps(self, awake: float, round_s: float) -> float:
        """Return the requests per second whose slack is shorter than the rest of an absence.

        Args:
            awake: Share of the time in which the model is awake.
            round_s: Time from one visit to the next.
        """
        lost_rps = 0.0
        for slack_s, rate in self.objectives:
            lost_rps += rate * max(0.0, 1.0 - awake - slack_s / round_s)
        return lost_rps

    @property
    def tightest_s(self) -> float:
        """Tightest slack; infinite without an objective."""
        return min((slack_s for slack_s, rate in self.objectives if rate), default=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedInstance:
    """An instance.

    Attributes:
        kind: Kind of accelerator.
        models: Models that it may serve.
        failed: Further models, whose engine has failed there: it may start again after a pause.
        loaded: The awake model, or the one that starts.
        starting: The loaded model starts.
        asleep: Models that it can wake without a cold start.
        host_memory_bytes: Memory for sleeping models.
        busy: Requests are running or parked there.
    """

    id: InstanceId
    kind: str
    models: frozenset[ModelId]
    failed: frozenset[ModelId] = frozenset()
    loaded: ModelId | None = None
    starting: bool = False
    asleep: frozenset[ModelId] = frozenset()
    host_memory_bytes: int = 0
    busy: bool = False

    def ready(self, model: ModelId) -> bool:
        """Return True if it serves a model without a cold start, or once the present one has ended."""
        return model == self.loaded or model in self.asleep


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """Demands by model, and instances."""

    demands: Mapping[ModelId, ModelDemand]
    instances: tuple[PlacedInstance, ...]

    def able(self, model: ModelId) -> list[int]:
        """Return the instances that can serve a model, by index."""
        kinds = self.demands[model].kinds
        return [at for at, each in enumerate(self.instances) if model in each.models and each.kind in kinds]

    def on_kind(self, model: ModelId, kind: str) -> ModelOnKind | None:
        """Return a model on a kind; None if it is not asked for, or its speed there is unknown."""
        demand = self.demands.get(model)
        return None if demand is None else demand.kinds.get(kind)
