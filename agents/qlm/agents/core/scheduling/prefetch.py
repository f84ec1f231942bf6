"""Prefetch of weights: files of models later in the virtual queue are read into host memory (QLM section 5).

An engine cannot start beside the awake one, whose weights and KV cache fill the accelerator. One that sleeps
without weights cannot load them into host memory except through the accelerator. While another model serves,
only weights files can be read into host memory: the later start or reload finds them there.
"""

from collections.abc import Sequence

from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action, PrefetchModel, ReleasePrefetch
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId


def prefetch(state: AgentState, now_ns: int) -> list[Action]:
    """Load the weights of the next model in the queue that needs it, or drop others for it; one at a time."""
    progress, engines = state.prefetch, state.engines
    progress.stale = False
    if progress.in_progress is not None or state.draining or not state.settings.prefetches:
        return []
    later = [model for model in state.queue.models() if model not in (engines.active, engines.swapping_to)]
    action = _next(state, later)
    if action is None:
        return []
    progress.in_progress = action.model
    state.stats.operations.prefetch_began(action, now_ns)
    return [action]


def _next(state: AgentState, later: Sequence[ModelId]) -> PrefetchModel | ReleasePrefetch | None:
    costs, engines, loaded = state.costs.swap, state.engines, state.prefetch
    for position, model in enumerate(later):
        asleep = engines.states[model] is EngineState.ASLEEP
        if model not in costs or asleep or not loaded.worth_trying(model):
            continue
        if costs[model].prefetch_saves_s <= 0:
            continue
        used_bytes = engines.host_memory(loaded.models, costs).bytes(costs)
        if costs[model].weights_bytes <= state.costs.host_memory_bytes - used_bytes:
            return PrefetchModel(model=model)
        sooner = later[:position]
        for other in reversed(loaded.models):
            if other not in sooner:
                return ReleasePrefetch(model=other)
        return None
    return None
