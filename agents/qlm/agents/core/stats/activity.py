"""What an instance does now, for the account of its time (`gpu_time`)."""

from collections.abc import Callable, Collection

from qlm.agents.core.costs.engine_speed import NO_SPEED
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.state import AgentState
from qlm.agents.core.stats.gpu_time import Activity, GpuUse
from qlm.domain.ids import ModelId

WaitingModels = Callable[[], Collection[ModelId]]
"""Returns the models with waiting requests."""


def activity(state: AgentState, waiting: WaitingModels, now_ns: int) -> Activity:
    """Return the present activity of the instance."""
    engines, model = state.engines, state.engines.active
    if engines.swapping_to is not None:
        return Activity(use=GpuUse.SWAP, model=engines.swapping_to)
    if model is None:
        return Activity(use=GpuUse.DOWN)
    if state.requests.calls:
        return Activity(use=GpuUse.USEFUL, model=model)
    if engines.suspect:
        return Activity(use=GpuUse.DOWN, model=model)
    if state.visit.leaving is not None:
        # The swap begins as soon as the last tokens are logged.
        return Activity(use=GpuUse.SWAP, model=model)
    return _idle(state, model, waiting(), now_ns)


def generates_still(state: AgentState, now_ns: int) -> bool:
    """Return whether the instance generates for the model of its last observation, a recent one."""
    engines = state.engines
    if not state.requests.calls or engines.swapping_to is not None:
        return False
    return state.stats.gpu_time.generates(engines.active, now_ns)


def waiting_here(state: AgentState) -> frozenset[ModelId]:
    """Return the models with requests that wait in this agent or in its virtual queue."""
    tracked_models = {tracked.request.model for tracked in state.requests.all.values() if not tracked.ended}
    return frozenset(tracked_models.union(state.queue.models()))


def computing_again_ns(state: AgentState, tracked: TrackedRequest) -> int:
    """Return the time to compute the prompt and the earlier output of a resumed generation again."""
    if not tracked.resumed_at or tracked.generation.swapped_in:
        return 0
    speed = state.costs.speed.get(tracked.request.model, NO_SPEED)
    return round(1e9 * speed.added_s(tracked.request.prompt_tokens + tracked.resumed_at))


def _idle(state: AgentState, model: ModelId, waiting: Collection[ModelId], now_ns: int) -> Activity:
    if not waiting:
        return Activity(use=GpuUse.IDLE, model=model)
    engines = state.engines
    able = tuple(
        [
            each
            for each in engines.models
            if each in waiting and engines.failed_until_ns.get(each, 0) <= now_ns
        ]
    )
    why = _why(state, model, able) if able else ""
    return Activity.idle(model, able, why)


def _why(state: AgentState, model: ModelId, waiting: Collection[ModelId]) -> str:
    """Return the reason why an idle instance serves nothing of what waits."""
    queue, visit = state.queue, state.visit
    if state.draining:
        return "it is draining"
    if queue.pulling or state.requests.leasing:
        return "requests are on their way"
    if state.requests.closing:
        return "the last tokens are on their way to the log"
    planned = [each for each in queue.models() if each in waiting]
    if not planned and not state.requests.ready:
        return "the plan has none of it here"
    if state.settings.visits:
        if model in waiting and (model in planned or state.requests.ready):
            return f"it would not end before the visit does, in {visit.remain.until_s:.1f} s"
        return visit.remain.why or "the visit was decided while it was busy"
    if queue.deferred:
        return "a swap is deferred: more work with deadlines may come for the awake model"
    return "a pull came back short, or a swap is about to begin"
