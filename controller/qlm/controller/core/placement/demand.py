"""What is expected for a model: its objectives and arrivals, and its times on each kind of accelerator."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Final

from qlm.agents.core.stats.concurrency import PACE_SHARE
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import ModelDemand, ModelOnKind
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.readers import paced_state
from qlm.rct_estimator.recompute import discarded_s, recompute_token_s
from qlm.rct_estimator.throughput import SteadyState, steady_state

SLACK_SHARE_MIN: Final = 0.2
"""Least slack as a share of the objective: lengths may be known badly."""


REACHED_MIN: Final = 0.05
"""Least share of requests that an idle instance answers in time, for their objective to count."""


def model_demand(
    model: ModelId,
    rates: dict[RequestClass, float],
    reached: frozenset[RequestClass],
    estimator: EstimatorState,
    fleet: Fleet,
) -> ModelDemand:
    """Return what is expected for a model that was asked for.

    Args:
        model: The model.
        rates: Requests per second by class.
        reached: Classes whose objective can be met.
        estimator: Times and lengths.
        fleet: Costs and profiles.
    """
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


def like_others(
    model: ModelId, rate_rps: float, asked: Mapping[ModelId, ModelDemand], fleet: Fleet
) -> ModelDemand:
    """Return what is expected for a model without requests so far: like those for the others.

    Args:
        model: The model.
        rate_rps: Its expected requests per second.
        asked: What is expected for the others.
        fleet: Costs and profiles.
    """
    share = rate_rps / max(1e-9, sum(demand.rate_rps for demand in asked.values()))
    kinds = ((kind, _like_others_on(model, kind, asked.values(), fleet)) for kind in fleet.kinds)
    return ModelDemand(
        objectives=tuple((s, share * rate) for demand in asked.values() for s, rate in demand.objectives),
        batch_rps=share * sum(demand.batch_rps for demand in asked.values()),
        kinds={kind: on_kind for kind, on_kind in kinds if on_kind is not None},
    )


def _like_others_on(
    model: ModelId, kind: str, asked: Iterable[ModelDemand], fleet: Fleet
) -> ModelOnKind | None:
    known = [demand.kinds[kind] for demand in asked if kind in demand.kinds]
    costs = _swap_costs(model, kind, fleet)
    if costs is None or not known:
        return None
    return replace(
        costs,
        service_s=fmean(each.service_s for each in known),
        answer_s=fmean(each.answer_s for each in known),
        recompute_s=fmean(each.recompute_s for each in known),
    )


def _slack_s(cls: RequestClass, objective_s: float, estimator: EstimatorState) -> float:
    """Return the time that a request can wait for its start, on the kind where that is longest."""
    leads_s = [lead.mean for lead in _leads(cls, estimator)]
    return max(SLACK_SHARE_MIN * objective_s, objective_s - min(leads_s, default=0.0))


def is_reached(cls: RequestClass, estimator: EstimatorState) -> bool:
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
    costs, profile = _swap_costs(model, kind, fleet), fleet.profiles.get((model, kind))
    known = [(cls, entry) for cls in rates if (entry := estimator.times.entries.get((cls, kind)))]
    if costs is None or profile is None or not known:
        return None
    weights = [rates[cls] or 1e-6 for cls, _entry in known]
    total = sum(weights)

    def weighted(values: Iterable[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total

    states = [entry.on_kind.state for _cls, entry in known]
    return replace(
        costs,
        service_s=weighted(_in_time_s(cls, entry.on_kind.state, profile) for cls, entry in known),
        answer_s=weighted(state.service.mean for state in states),
        recompute_s=discarded_s(
            weighted(state.workload.context_tokens for state in states), recompute_token_s(profile)
        ),
    )


def _swap_costs(model: ModelId, kind: str, fleet: Fleet) -> ModelOnKind | None:
    """Return a model on a kind with the costs of its swaps only; None if it has no profile there."""
    cost, profile = fleet.kinds[kind].models.get(model), fleet.profiles.get((model, kind))
    if cost is None or profile is None:
        return None
    return ModelOnKind(
        service_s=0.0,
        answer_s=0.0,
        recompute_s=0.0,
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
