"""The placement problem in the controller: demands from what was learned, and the instances now."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from qlm.agents.core.stats.concurrency import PACE_SHARE
from qlm.controller.core.estimating.arrivals import present_rates
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet, able_models
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.view import ClusterView
from qlm.planner.placement.problem import ModelDemand, ModelOnKind, PlacedInstance, PlacementProblem
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.readers import paced_state
from qlm.rct_estimator.recompute import discarded_s, recompute_token_s
from qlm.rct_estimator.throughput import SteadyState, steady_state

SLACK_SHARE_MIN: Final = 0.2
"""Least slack as a share of the objective: lengths may be known badly."""


REACHED_MIN: Final = 0.05
"""Least share of requests that an idle instance answers in time, for their objective to count."""


def placement_problem(
    view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
) -> PlacementProblem:
    """Build the problem of the models that were asked for lately."""
    classes = [cls for cls in estimator.arrivals if not cls.late]
    models = sorted({cls.model for cls in classes})
    rates = present_rates(view, now_ns, estimator.arrivals)
    reached = frozenset(cls for cls in classes if _is_reached(cls, estimator))
    waiting = Counter[ModelId]()
    for each in view.classes:
        waiting[each.cls.model] += each.queued if each.cls in reached else 0
    demands = {
        model: replace(
            _demand(model, {c: rates[c] for c in classes if c.model == model}, reached, estimator, fleet),
            waiting=waiting[model],
        )
        for model in models
    }
    instances = tuple(_instance(status, fleet) for status in _usable(view, fleet))
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


def _demand(
    model: ModelId,
    rates: dict[RequestClass, float],
    reached: frozenset[RequestClass],
    estimator: EstimatorState,
    fleet: Fleet,
) -> ModelDemand:
    kinds = {}
    for kind in fleet.kinds:
        on_kind = _on_kind(model, kind, rates, estimator, fleet)
        if on_kind is not None:
            kinds[kind] = on_kind
    return ModelDemand(
        objectives=tuple(
            (_slack_s(cls, cls.target_ms / 1e3, estimator), rate)
            for cls, rate in rates.items()
            if cls.target_ms is not None and cls in reached
        ),
        batch_rps=sum(rate for cls, rate in rates.items() if cls not in reached),
        kinds=kinds,
    )


def _slack_s(cls: RequestClass, objective_s: float, estimator: EstimatorState) -> float:
    """Return the time that a request can wait for its start, on the kind where that is longest."""
    leads_s = [lead.mean for lead in _leads(cls, estimator)]
    return max(SLACK_SHARE_MIN * objective_s, objective_s - min(leads_s, default=0.0))


def _is_reached(cls: RequestClass, estimator: EstimatorState) -> bool:
    """Return whether a class has an objective that can be met: else its requests are late wherever they run.

    They may wait then, as those without an objective do. Where times are unknown, it counts as met.
    """
    if cls.target_ms is None:
        return False
    shares = [lead.at_most(cls.target_ms / 1e3) for lead in _leads(cls, estimator)]
    return max(shares, default=1.0) >= REACHED_MIN


def _leads(cls: RequestClass, estimator: EstimatorState) -> list[Normal]:
    """Return the time from a start to what the objective is about, on each kind whose times are known."""
    times = estimator.times
    entries = (times.entries.get((cls, kind)) for kind in times.kind)
    return [_lead(each.on_kind.state, first_token=cls.about_first_token) for each in entries if each]


def _lead(state: SteadyState, *, first_token: bool) -> Normal:
    """Return the time from a start to what the objective is about, alone: full batches may be too slow."""
    work, prefill_s = state.workload, state.own_prefill_s
    prefill = Normal(prefill_s, work.computed_cv2 * prefill_s**2)
    if first_token:
        return prefill
    return prefill + Normal(max(0.0, work.output.mean - 1), work.output.var).scaled(state.alone_s)


def _on_kind(
    model: ModelId,
    kind: str,
    rates: dict[RequestClass, float],
    estimator: EstimatorState,
    fleet: Fleet,
) -> ModelOnKind | None:
    """Return the model on a kind, with means over its classes weighted by arrivals."""
    cost, profile = fleet.kinds[kind].models.get(model), fleet.profiles.get((model, kind))
    known = [(cls, entry) for cls in rates if (entry := estimator.times.entries.get((cls, kind)))]
    if cost is None or profile is None or not known:
        return None
    weights = [rates[cls] or 1e-6 for cls, _entry in known]
    total = sum(weights)

    def mean(values: Iterable[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total

    states = [entry.on_kind.state for _cls, entry in known]
    return ModelOnKind(
        service_s=mean(_in_time_s(cls, entry.on_kind.state, profile) for cls, entry in known),
        answer_s=mean(state.service.mean for state in states),
        recompute_s=discarded_s(
            mean(state.workload.context_tokens for state in states), recompute_token_s(profile)
        ),
        warm_s=cost.swap_warm_s + cost.unload_s,
        reload_s=profile.swap_reload_s + cost.unload_s,
        cold_s=cost.swap_cold_s,
        weights_bytes=cost.weights_bytes,
    )


def _in_time_s(cls: RequestClass, state: SteadyState, profile: Profile) -> float:
    """Return the time between two ends in the largest batch whose answers are in time.

    A full batch has the most answers per second, but each takes longest: with 27 s for an answer that takes
    26 s in it, nothing may wait. Where an answer alone is too slow, the batch is full.
    """
    if cls.target_ms is None or cls.about_first_token:
        return state.request_s
    left_s = PACE_SHARE * cls.target_ms / 1e3 - state.own_prefill_s
    steps = max(0.0, state.workload.output.mean - 1)
    if left_s <= 0 or not steps:
        return state.request_s
    paced = paced_state(profile, state.workload, steps / left_s)
    # The state has what was measured, a state by the profile alone has not.
    return state.request_s * paced.request_s / steady_state(profile, state.workload).request_s
