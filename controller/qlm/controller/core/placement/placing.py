"""Placement in the controller: when it is decided, and instances restricted to their models."""

from dataclasses import replace
from typing import Final

from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet, able_models
from qlm.controller.core.placement.losses import counted, late_requests, lost_since
from qlm.controller.core.placement.problem import READY, placement_problem
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.planner.placement.policy import EVERY_S, FIRST_AFTER_S, Homes, PlacementState, place

UNASKED_AFTER_S: Final = 3.0
"""Time with requests after which a model without any is taken for one that is not asked for."""


def update_placement(
    state: PlacementState, view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
) -> PlacementState:
    """Return the placement after a view; see `planner.placement.policy.place`."""
    now_s = now_ns / 1e9
    if not (is_due(state, now_ns) or _homeless(state.homes or {}, view)):
        return state
    if state.traffic_since_s is None and _homeless({}, view):
        state = replace(state, traffic_since_s=now_s)
    problem = placement_problem(view, estimator, fleet, now_ns)
    watched_s = max((known.past_s for known in estimator.arrivals.values()), default=0.0)
    late = late_requests(view, estimator)
    lost = state.lost + lost_since(state.late, late)
    placed = place(state, problem, now_s=now_s, lost=lost, watched_s=watched_s)
    decided = placed.decided_s != state.decided_s
    return replace(placed, late=counted(state.late, late)) if decided else placed


def is_due(state: PlacementState, now_ns: int) -> bool:
    """Return True if the first placement, or a regular look at it, is due."""
    return state.homes is None or now_ns / 1e9 - state.decided_s >= EVERY_S


def _homeless(homes: Homes, view: ClusterView) -> bool:
    """Return True if a model is waited for that has no home yet, though an instance could serve it."""
    able = frozenset[ModelId]().union(*map(able_models, _live(view)))
    placed = _placed(homes, view)
    return any(each.queued and each.cls.model in able - placed for each in view.classes)


def _placed(homes: Homes, view: ClusterView) -> frozenset[ModelId]:
    """Return the models with a home that serves them now or will."""
    return frozenset[ModelId]().union(*(_here(homes, status) for status in _live(view)))


def _here(homes: Homes, status: InstanceStatus) -> frozenset[ModelId]:
    return homes.get(status.id, frozenset()) & able_models(status)


def _live(view: ClusterView) -> list[InstanceStatus]:
    return [status for status in view.instances if not status.draining]


def restricted(view: ClusterView, state: PlacementState, fleet: Fleet, now_ns: int) -> ClusterView:
    """Return the view with instances that serve only the models placed there.

    Before the first placement, models stay where they are awake or asleep, and a spare instance may start
    one that is neither anywhere. A model without a live home, such as one without requests so far, may run
    anywhere, and an idle instance may serve anything. One that is to start a copy gets no more requests of
    its present model.
    """
    homes = _awake(view) if state.homes is None else state.homes
    placed = _placed(homes, view)
    if state.homes is None:
        placed |= frozenset(model for model in _contended(view) if _waits(model, view, state, fleet, now_ns))

    waiting = {each.cls.model for each in view.classes if each.queued}
    served = frozenset[ModelId]().union(*(_here(homes, each) & _ready(each) for each in _live(view)))
    spare = _spare(view, state, now_ns) if state.homes is None else frozenset[InstanceId]()

    def serves(status: InstanceStatus) -> tuple[ModelId, ...]:
        here = _here(homes, status)
        free = not here if state.homes is None else _idle(status, view) and not waiting & here
        if free:
            return status.models
        engaged = here | (_starting(status) if _starts_copy(status, here, served) else _engaged(status, view))
        elsewhere = placed & served if status.id in spare else placed
        return tuple(model for model in status.models if model in engaged or model not in elsewhere)

    return replace(view, instances=tuple(replace(status, models=serves(status)) for status in view.instances))


def _waits(model: ModelId, view: ClusterView, state: PlacementState, fleet: Fleet, now_ns: int) -> bool:
    """Return True if a model waits for the first placement: no longer than a wrong start would take."""
    if state.traffic_since_s is None:
        return True
    kinds = (fleet.kinds.get(status.accelerator) for status in _live(view) if model in status.models)
    costs = (kind.models.get(model) for kind in kinds if kind is not None)
    start_s = min((cost.swap_cold_s for cost in costs if cost is not None), default=FIRST_AFTER_S)
    return now_ns / 1e9 - state.traffic_since_s < min(FIRST_AFTER_S, start_s)


def _spare(view: ClusterView, state: PlacementState, now_ns: int) -> frozenset[InstanceId]:
    """Return the idle instances whose awake model no request needs there, or that have none.

    Another instance has it awake, too, or requests have come for `UNASKED_AFTER_S` without one for it. So a
    start there takes nothing from anybody, and ten seconds are worth more than the best place.
    """
    asked = {each.cls.model for each in view.classes}
    since_s = state.traffic_since_s
    if since_s is None or now_ns / 1e9 - since_s < UNASKED_AFTER_S:
        asked |= {each.active_model for each in _live(view) if each.active_model is not None}
    needed, spare = set[ModelId | None](), set[InstanceId]()
    for status in sorted(_live(view), key=lambda each: (_idle(each, view), each.id)):  # busy ones first
        if _idle(status, view) and (status.active_model in needed or status.active_model not in asked):
            spare.add(status.id)
        needed.add(status.active_model)
    return frozenset(spare)


def _idle(status: InstanceStatus, view: ClusterView) -> bool:
    starting = any(engine is EngineState.STARTING for _model, engine in status.engines)
    return not (status.running or status.parked or view.leased.get(status.id) or starting)


def _engaged(status: InstanceStatus, view: ClusterView) -> frozenset[ModelId]:
    """Return the model that an instance runs or loads: what it took up while idle, it may finish.

    Its last heartbeat may be older than its first leases.
    """
    busy = status.running or view.leased.get(status.id)
    awake = {status.active_model} if status.active_model is not None and busy else set()
    return _starting(status) | awake


def _starting(status: InstanceStatus) -> frozenset[ModelId]:
    return frozenset(model for model, engine in status.engines if engine is EngineState.STARTING)


def _starts_copy(status: InstanceStatus, here: frozenset[ModelId], served: frozenset[ModelId]) -> bool:
    """Return True if an instance has no model of its homes yet, and others serve its present one meanwhile.

    No request waits for a copy: other homes serve them, so the instance would never be idle and start it.
    A model without such a home is waited for, and started for that.

    Args:
        status: The instance.
        here: Models placed there.
        served: Models with a home that needs no start.
    """
    return not here & _ready(status) and status.active_model in served and bool(here & served)


def _ready(status: InstanceStatus) -> frozenset[ModelId]:
    return frozenset(model for model, engine in status.engines if engine in READY)


def _awake(view: ClusterView) -> Homes:
    """Return the models that each instance serves without a cold start."""
    return {status.id: _ready(status) for status in view.instances}


def _contended(view: ClusterView) -> frozenset[ModelId]:
    """Return the models asked for if more models than instances may be.

    Before the first placement, these wait for it some seconds instead of starting on an instance that happens
    to be idle, but not spare. Until then awake models are served, and their lengths are learned.
    """
    live = _live(view)
    served = frozenset[ModelId]().union(*(status.models for status in live))
    contended = len(served) > len(live) > 1
    return frozenset(each.cls.model for each in view.classes) if contended else frozenset()
