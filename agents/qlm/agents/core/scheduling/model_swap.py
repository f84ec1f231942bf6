"""Model swaps, driven by the order of the virtual queue."""

from typing import Final

from qlm.agents.core.lifecycle import Cause, advance, return_all
from qlm.agents.core.scheduling.eviction_worth import worth_evicting
from qlm.agents.core.scheduling.preemption import cannot_wait, victims_of_swap, watch_head
from qlm.agents.core.scheduling.swap_hysteresis import SwapHysteresis
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action, SwapModel
from qlm.domain.group import Group
from qlm.domain.ids import ModelId

SHORT_PAUSE_NS: Final = 60_000_000_000
"""Pause of a failed engine that is waited for: to start another one may take as long."""


def start_engine(state: AgentState, head: Group | None, now_ns: int) -> list[Action]:
    """Without an awake engine, start the one that the virtual queue needs, else the first home or model.

    After a failure it waits for the end of the pause, or starts another model if that is far off.
    """
    engines = state.engines
    if head is not None:
        return begin_swap(state, head.cls.model, head, now_ns)
    paused = {model: at_ns for model, at_ns in engines.failed_until_ns.items() if at_ns > now_ns}
    retry_ns = min(paused.values(), default=now_ns)
    models = (each for each in (*state.queue.homes, *engines.models) if each not in paused)
    first = next(models, None)
    if first is not None and (not paused or retry_ns > now_ns + SHORT_PAUSE_NS):
        return begin_swap(state, first, None, now_ns)
    state.alarm.want(retry_ns)
    return []


def defer_other_models(state: AgentState, now_ns: int) -> None:
    """Update the hysteresis against swaps soon after SLO-bound work."""
    queue, model, last = state.queue, state.engines.active, state.queue.last_slo_start
    idle_s = state.settings.swap_idle_s
    if model is None or last is None or last.model != model or not idle_s:
        queue.defer_by(None)
        return
    hysteresis = SwapHysteresis(
        model=model,
        priority=last.priority,
        since_ns=last.at_ns,
        idle_ns=round(idle_s * 1e9),
        awake_ns=state.visit.awake_ns,
        swap_ns=state.engines.swap_ns,
        return_ns=_WayBack(state, model),
    )
    queue.defer_by(hysteresis)
    queue.group(now_ns)
    if queue.deferred and queue.until_ns is not None:
        state.alarm.want(max(queue.until_ns, now_ns + 1))


class _WayBack:
    """Time to swap back to a model after others; each is estimated once, and only if it is asked for."""

    __slots__ = ("_known_ns", "_model", "_state")

    def __init__(self, state: AgentState, model: ModelId) -> None:
        self._state = state
        self._model = model
        self._known_ns: dict[ModelId, int] = {}

    def __call__(self, after: ModelId) -> int:
        known_ns = self._known_ns.get(after)
        if known_ns is None:
            state = self._state
            use = state.engines.host_memory(state.prefetch.models, state.costs.swap)
            known_ns = self._known_ns[after] = round(1e9 * state.costs.return_s(self._model, use, after))
        return known_ns


def at_work(state: AgentState) -> bool:
    """Return True if requests run, or are on their way: READY ones that are not begun give nothing to do."""
    return len(state.requests.all) > state.requests.ready or state.queue.pulling > 0


def toward_swap(state: AgentState, head: Group, now_ns: int) -> list[Action]:
    """Let running requests finish, or preempt them if the head cannot wait; then swap."""
    requests, model = state.requests, head.cls.model
    due_ns = state.queue.first_since_ns(head, now_ns) + round(state.settings.swap_after_s * 1e9)
    if now_ns < due_ns:
        state.alarm.want(due_ns)
        return []
    if requests.kv.running:
        return _preempt_for_swap(state, head, now_ns)
    busy = at_work(state)
    demotes = state.settings.demotes_decided
    actions = return_all(requests, f"swapping to {model}", now_ns, demotes_decided=demotes)
    return actions if busy or requests.all else [*actions, *begin_swap(state, model, head, now_ns)]


def _preempt_for_swap(state: AgentState, head: Group, now_ns: int) -> list[Action]:
    requests, queue = state.requests, state.queue
    watch_head(state, now_ns)
    # Deferrable work preempts nothing, or groups that are all late would take turns forever.
    deadline_ns = head.hopeful_deadline_ns(now_ns)
    if not requests.running or deadline_ns is None or not state.settings.preempts:
        return []
    if not cannot_wait(state, head.cls, deadline_ns, now_ns):
        return []
    victims = victims_of_swap(requests.running.values(), head=queue.urgency, now_ns=now_ns)
    awake = state.engines.active
    if not victims or awake is None or not worth_evicting(state, awake, head, victims, now_ns):
        return []
    actions: list[Action] = []
    for victim in victims:
        state.stats.operations.preempted_for_swap(victim.request.model)
        why = f"evicted: {head.id} needs {head.cls.model}"
        actions += advance(requests, victim, Cause.EVICTED, now_ns, why=why)
    if actions:
        queue.commit(head.id, emptied=not requests.running)
    return actions


def begin_swap(state: AgentState, model: ModelId, head: Group | None, now_ns: int) -> list[Action]:
    """Swap to a model; `head` is the group that it is for, if any."""
    active = state.engines.active
    state.stats.operations.swap_began(active, model, head.cls.queue if head else "", now_ns)
    later = tuple(each for each in state.queue.models() if each not in (model, active))
    state.queue.release()
    state.visit.leave(active, now_ns)
    state.engines.begin_swap(model)
    return [SwapModel(model=model, later=later)]
