"""The agent's rule of visits: restricts what is begun, and leaves the model when it is time to."""

from typing import Final

from qlm.agents.core.lifecycle import Cause, advance, return_all
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.model_swap import at_work, begin_swap
from qlm.agents.core.scheduling.visits.decision import DECIDE_WITHIN_S, decide
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.scheduling.visits.inputs import candidates, present
from qlm.agents.core.scheduling.visits.remain import Leave
from qlm.agents.core.scheduling.visits.state import DECIDE_EVERY_NS
from qlm.agents.core.scheduling.visits.waiting import latest_start_ns
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action
from qlm.domain.group import Group
from qlm.domain.ids import ModelId

RECHECK_NS: Final = 250_000_000
"""Time until a close decision is made again without an event."""


def keep_visit(state: AgentState, model: ModelId, now_ns: int) -> Leave | None:
    """Decide about the visit if that is due; return the decision to leave, if there is one."""
    visit, queue = state.visit, state.queue
    if visit.leaving is not None and not visit.evicted and visit.leaving.model not in queue.models():
        # Others have served it while the last answers here end. Nothing is begun here meanwhile.
        visit.stay()
    if visit.leaving is None:
        if at_work(state):
            visit.idle_ns = None  # what has begun since the last decision
        since_ns = now_ns - visit.decided_ns
        if 0 <= since_ns < DECIDE_EVERY_NS and visit.awaited == queue.awaited:
            state.alarm.want(visit.decided_ns + DECIDE_EVERY_NS)
        else:
            _decide(state, model, now_ns)
        _note_idle(state, now_ns)
    if visit.leaving is not None:
        queue.restrict(None)
    return visit.leaving


def may_begin(state: AgentState, tracked: TrackedRequest) -> bool:
    """Return True if a READY request is still begun in this visit."""
    visit, cls = state.visit, tracked.request.cls
    latest_ns = None
    if not (tracked.best_effort or tracked.answered):
        deadline_ns = tracked.request.deadline_ns
        latest_ns = None if deadline_ns is None else deadline_ns - state.stats.lead_times.lead_ns(cls)
    work = Forecasts(state).work(cls)
    tracked.generation.stopgap = not visit.remain.ends(work)
    if visit.meant(work, latest_start_ns=latest_ns):
        return True
    begun = visit.remain.spare_s > 0 and tracked.preemptible
    if begun:
        visit.spend(work.refill_s)
    return begun


def leave(state: AgentState, decision: Leave, now_ns: int) -> list[Action]:
    """Evict what runs, return what waits here, and swap once all is gone.

    Requests that may not be evicted finish first, and the others run on until then.
    """
    requests, model = state.requests, decision.model
    actions: list[Action] = []
    running = list(requests.running.values())
    for victim in running if all(each.preemptible for each in running) else ():
        state.stats.operations.preempted_for_swap(victim.request.model)
        actions += advance(requests, victim, Cause.EVICTED, now_ns, why=f"evicted: {decision.why}")
        state.visit.evicted = True
    busy = at_work(state)
    actions += return_all(requests, f"swapping to {model}", now_ns, generating=False)
    if busy or requests.all:
        return actions
    head = next((group for group, _left in state.queue.waiting() if group.cls.model == model), None)
    return [*actions, *begin_swap(state, model, head, now_ns)]


def _decide(state: AgentState, model: ModelId, now_ns: int) -> None:
    visit = state.visit
    forecasts = Forecasts(state)
    others = candidates(state, forecasts, now_ns)
    decision = decide(present(state, model, forecasts, now_ns), others)
    visit.decided_ns, visit.awaited = now_ns, state.queue.awaited
    if isinstance(decision, Leave):
        visit.leaving = decision
        return
    visit.remain = decision

    def begun(group: Group) -> bool:
        if group.cls.model != model:
            return False
        return visit.begins(forecasts.work(group.cls), latest_start_ns=latest_start_ns(state, group))

    state.queue.restrict(begun)
    if not others:
        return
    until_s = decision.until_s - DECIDE_WITHIN_S
    wait_ns = RECHECK_NS if until_s < 1.0 or visit.idle_ns is not None else round(min(until_s, 1e6) * 1e9)
    state.alarm.want(now_ns + wait_ns)


def _note_idle(state: AgentState, now_ns: int) -> None:
    visit = state.visit
    if visit.leaving is not None:
        return
    if at_work(state) or state.queue.group(now_ns) is not None:
        visit.idle_ns = None
    elif visit.idle_ns is None:
        visit.idle_ns = now_ns
        state.alarm.want(now_ns + RECHECK_NS)
