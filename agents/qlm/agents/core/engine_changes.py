"""What the host of the engines reports: their states, and weights files in host memory."""

from qlm.agents.batching.pool import pool_of
from qlm.agents.core import lifecycle
from qlm.agents.core.costs.engine_speed import NO_SPEED
from qlm.agents.core.events import EngineChanged, WeightsPrefetched
from qlm.agents.core.scheduling.prefill_limit import follow_objectives
from qlm.agents.core.state import AgentState
from qlm.agents.core.stats.progress import pause_beside_others_ns
from qlm.domain.actions import Action
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier


def engine_changed(state: AgentState, event: EngineChanged, now_ns: int) -> list[Action]:
    """Take a new state of an engine; return what follows for its requests."""
    engines, model = state.engines, event.model
    awake = event.state is EngineState.AWAKE
    start_ns = now_ns - state.visit.awake_ns if model == engines.swapping_to else 0
    if engines.changed(model, event.state):
        tier = event.tier or SwapTier.COLD if awake else None
        state.stats.operations.swapped(tier, now_ns)
    state.queue.changed()
    state.prefetch.changed(memory=True)
    if awake:
        engines.woke(model, event.capacity)
        if event.capacity is not None:
            _resize(state, model, event.capacity)
        state.stats.engine_woke(now_ns)
        state.visit.begin(now_ns)
    if event.state is not EngineState.FAILED:
        return []
    _engine_failed(state, model, event.error, start_ns, now_ns)
    return lifecycle.engine_failed(state.requests, model, event.error)


def _resize(state: AgentState, model: ModelId, capacity: EngineCapacity) -> None:
    by_aborts = state.settings.hosts_policy
    pool = pool_of(state.settings.batching, capacity, by_aborts=by_aborts)
    speed = state.costs.speed.get(model, NO_SPEED)
    state.requests.resize(capacity, pool, speed=speed, pool_waits_here=by_aborts)
    follow_objectives(state)


def _engine_failed(state: AgentState, model: ModelId, error: str, start_ns: int, now_ns: int) -> None:
    settings, watch = state.settings.watch, state.stats.progress
    pause_ns = watch.pause_ns(model, settings, now_ns)
    if len(state.engines.models) > 1:  # a start takes the accelerator from the others
        longer_ns = pause_beside_others_ns(start_ns, state.engines.failures[model] + 1)
        pause_ns = max(pause_ns, min(longer_ns, round(settings.out_s * 1e9)))
    restarts = watch.recent_restarts(model, settings, now_ns)
    if restarts > settings.restarts_max:
        span = f"{restarts} times in {settings.window_s:g} s"
        error = f"out of service for {settings.out_s:g} s, since it stood still {span}: {error}"
    state.engines.failed(model, error, now_ns + pause_ns)


def weights_prefetched(state: AgentState, event: WeightsPrefetched, now_ns: int) -> None:
    """Take which weights files are in host memory."""
    state.prefetch.reported(event.models)
    if event.requested is not None:
        state.prefetch.finished(event.requested, refused=event.refused)
        state.stats.operations.prefetch_ended(now_ns, refused=event.refused)
