"""When placements change: first after some traffic, later only if what they save is worth the starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.placement.problem import Placement, PlacementProblem
from qlm.planner.placement.score import Losses
from qlm.planner.placement.search import improve, present_placement
from qlm.planner.placement.starts import Starts

FIRST_AFTER_S: Final = 10.0
"""Traffic observed before the first placement: earlier, one burst moves models that are well placed."""

WATCHED_MIN_S: Final = 60.0
"""Earlier traffic from which rates are known so well that the first placement need not wait."""

EVERY_S: Final = 30.0
"""Interval of further decisions."""

HORIZON_MIN_S: Final = 300.0
"""Shortest time for which a placement is expected to pay."""

HORIZON_MAX_S: Final = 600.0
"""Longest time for which a placement is expected to pay; between the two, the time observed so far."""

CHANGE_REQUESTS: Final = 5.0
"""Least gain of a change beyond its cold starts, requests."""

CHANGE_SHARE: Final = 0.15
"""Least fall of the expected losses as a share, and least share of the gain that is really lost."""

Homes = Mapping[InstanceId, frozenset[ModelId]]
"""Models of each instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementState:
    """The present placement.

    Attributes:
        homes: Models of each instance; None before the first placement. A model whose engine has failed there
            keeps its home beside those that stand in for it.
        traffic_since_s: First request, on the clock of the calls; None before it.
        decided_s: Last decision.
        lost: Requests that had missed their objective by then.
        late: Such requests of each late class by then: their growth is what is lost since.
    """

    homes: dict[InstanceId, frozenset[ModelId]] | None = None
    traffic_since_s: float | None = None
    decided_s: float = 0.0
    lost: float = 0.0
    late: Mapping[RequestClass, int] = field(default_factory=dict)


def place(
    state: PlacementState, problem: PlacementProblem, *, now_s: float, lost: float, watched_s: float = 0.0
) -> PlacementState:
    """Return the placement for the next minutes; `state` itself if it stands.

    Args:
        state: The present placement.
        problem: Demands and instances.
        now_s: The present; must not fall from call to call.
        lost: Requests that have missed their objective so far, without those that are late because their
            batch was too full: a change needs real losses, or two nearly equal placements take turns.
        watched_s: Time that the rates rest on: longer than the traffic of this controller with a history.
    """
    since_s = state.traffic_since_s
    if since_s is None:
        if not problem.demands:
            return state
        since_s, state = now_s, replace(state, traffic_since_s=now_s)
    if not any(demand.rate_rps for demand in problem.demands.values()):
        return state
    if state.homes is None:
        if now_s - since_s < FIRST_AFTER_S and watched_s < WATCHED_MIN_S:
            return state
        return replace(state, homes=_homes(problem, _first(problem)), decided_s=now_s, lost=lost)
    present = _completed(problem, state.homes)
    homes = _with_failed(problem, state.homes, _homes(problem, present))
    if now_s - state.decided_s < EVERY_S:
        return state if homes == state.homes else replace(state, homes=homes)
    better = _changed(state, problem, present, now_s, lost)
    if better is not None:
        homes = _homes(problem, better)
    return replace(state, homes=homes, decided_s=now_s, lost=lost)


def _first(problem: PlacementProblem) -> Placement:
    start, losses = present_placement(problem), Losses(problem)
    starts = Starts(losses, losses.loads(start))

    def cost(placement: Placement) -> float:
        return HORIZON_MIN_S * losses.lost_rps(placement) + starts.lost(placement)

    return improve(problem, start, cost)


def _changed(
    state: PlacementState, problem: PlacementProblem, present: Placement, now_s: float, lost: float
) -> Placement | None:
    """Return a placement that is worth its cold starts; None if there is none."""
    assert state.traffic_since_s is not None
    horizon_s = min(HORIZON_MAX_S, max(HORIZON_MIN_S, now_s - state.traffic_since_s))
    really_rps = (lost - state.lost) / max(1.0, now_s - state.decided_s)
    if really_rps <= 0:
        return None  # nothing that is found would be worth it, and the search may take seconds
    losses = Losses(problem)
    expected_rps, starts = losses.lost_rps(present), Starts(losses, losses.loads(present))

    def cost(placement: Placement) -> float:
        return horizon_s * losses.lost_rps(placement) + starts.lost(placement)

    found = improve(problem, present, cost)
    gain_rps = expected_rps - losses.lost_rps(found)
    if gain_rps < CHANGE_SHARE * expected_rps:
        return None
    if really_rps < CHANGE_SHARE * gain_rps:
        return None
    price = starts.lost(found) - starts.lost(present)
    return found if gain_rps * horizon_s > price + CHANGE_REQUESTS else None


def _completed(problem: PlacementProblem, homes: Homes) -> Placement:
    """Return the placement on the present fleet, with a home for models that have none, or lost theirs."""
    able = {model: problem.able(model) for model in problem.demands}
    placement: Placement = tuple(
        frozenset(model for model in homes.get(each.id, ()) if at in able.get(model, ()))
        for at, each in enumerate(problem.instances)
    )
    placed = frozenset[ModelId]().union(*placement)
    losses = Losses(problem)
    starts = Starts(losses, losses.loads(placement))
    rest = [model for model in problem.demands if model not in placed and able[model]]
    for model in sorted(rest, key=lambda model: (-problem.demands[model].rate_rps, model)):
        placement = _added(losses, starts, placement, model)
    return placement


def _added(losses: Losses, starts: Starts, placement: Placement, model: ModelId) -> Placement:
    """Add a model where that costs least: beside the models of an instance, or instead of copies."""

    def cost(option: tuple[int, Placement]) -> tuple[float, bool, int, int]:
        at, new = option
        total = HORIZON_MIN_S * losses.lost_rps(new) + starts.lost(new)
        return round(total, 2), losses.problem.instances[at].busy, len(new[at]), at

    options = []
    for at in losses.problem.able(model):
        elsewhere = frozenset[ModelId]().union(*(each for to, each in enumerate(placement) if to != at))
        for kept in (placement[at], placement[at] - elsewhere):
            options.append((at, (*placement[:at], kept | {model}, *placement[at + 1 :])))
    return min(options, key=cost)[1]


def _with_failed(
    problem: PlacementProblem, before: Homes, homes: dict[InstanceId, frozenset[ModelId]]
) -> dict[InstanceId, frozenset[ModelId]]:
    """Return the homes, and those of before where the engine has failed."""
    return {
        each.id: homes[each.id] | (each.failed & before.get(each.id, frozenset()))
        for each in problem.instances
    }


def _homes(problem: PlacementProblem, placement: Placement) -> dict[InstanceId, frozenset[ModelId]]:
    return {each.id: models for each, models in zip(problem.instances, placement, strict=True)}
