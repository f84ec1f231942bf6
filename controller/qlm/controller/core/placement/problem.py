"""The placement problem in the controller: demands from what was learned, and the instances now."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from qlm.controller.core.estimating.arrivals import present_rates
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet, able_models
from qlm.controller.core.placement.demand import is_reached, like_others, model_demand
from qlm.controller.core.placement.popularity import expected_rates
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.view import ClusterView
from qlm.planner.placement.policy import HORIZON_MIN_S
from qlm.planner.placement.problem import PlacedInstance, PlacementProblem

READY: Final = frozenset(EngineState) - {EngineState.COLD, EngineState.FAILED}
"""States of an engine that serves, or will without a cold start."""

EXPECTED_MIN: Final = 0.5
"""Least number of requests expected in `HORIZON_MIN_S` for a model without any so far to keep its place."""


def placement_problem(
    view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
) -> PlacementProblem:
    """Build the problem of the models that were asked for lately, and of ready ones that may be soon."""
    usable = list(_usable(view, fleet))
    rates, expected = _rates(view, estimator, usable, now_ns)
    reached = frozenset(cls for cls in rates if is_reached(cls, estimator))
    waiting = Counter[ModelId]()
    for each in view.classes:
        waiting[each.cls.model] += each.queued if each.cls in reached else 0
    asked = {
        model: replace(
            model_demand(
                model, {c: rate for c, rate in rates.items() if c.model == model}, reached, estimator, fleet
            ),
            waiting=waiting[model],
        )
        for model in sorted({cls.model for cls in rates})
    }
    unasked = {model: expected[model] for model in sorted(_ready(usable) - asked.keys())}
    demands = asked | {
        model: like_others(model, rate_rps, asked, fleet)
        for model, rate_rps in unasked.items()
        if rate_rps * HORIZON_MIN_S >= EXPECTED_MIN
    }
    instances = tuple(_instance(status, fleet) for status in usable)
    kinds = {each.kind for each in instances}
    return PlacementProblem(
        demands={
            model: demand
            for model, demand in demands.items()
            if any(kind in kinds for kind in demand.kinds)
            and any(model in each.models and each.kind in demand.kinds for each in instances)
        },
        instances=instances,
    )


def _rates(
    view: ClusterView, estimator: EstimatorState, usable: Iterable[InstanceStatus], now_ns: int
) -> tuple[dict[RequestClass, float], dict[ModelId, float]]:
    """Return the expected requests per second, by class and by model, of models without classes, too."""
    counted = present_rates(view, now_ns, estimator.arrivals)
    rates = {cls: rate_rps for cls, rate_rps in counted.items() if not cls.late}
    asked = defaultdict[ModelId, float](float)
    for cls, rate_rps in rates.items():
        asked[cls.model] += rate_rps
    watched_s = max((known.past_s for known in estimator.arrivals.values()), default=0.0)
    models = frozenset[ModelId]().union(*(each.models for each in usable))
    expected = expected_rates(asked, watched_s, models)
    return {cls: _part(rate, asked[cls.model]) * expected[cls.model] for cls, rate in rates.items()}, expected


def _part(rate_rps: float, of_rps: float) -> float:
    return rate_rps / of_rps if of_rps else 0.0


def _ready(usable: Iterable[InstanceStatus]) -> frozenset[ModelId]:
    """Return the models that serve somewhere without a cold start."""
    return frozenset(model for each in usable for model, engine in each.engines if engine in READY)


def _usable(view: ClusterView, fleet: Fleet) -> Iterator[InstanceStatus]:
    return (each for each in view.instances if not each.draining and each.accelerator in fleet.kinds)


def _instance(status: InstanceStatus, fleet: Fleet) -> PlacedInstance:
    able = able_models(status)
    starting = next((model for model, state in status.engines if state is EngineState.STARTING), None)
    return PlacedInstance(
        id=status.id,
        kind=status.accelerator,
        models=able,
        failed=frozenset(status.models) - able,
        loaded=status.active_model or starting,
        starting=status.active_model is None and starting is not None,
        asleep=frozenset(model for model, state in status.engines if state.sleeps),
        host_memory_bytes=fleet.kinds[status.accelerator].host_memory_bytes,
        busy=bool(status.running or status.parked),
    )
