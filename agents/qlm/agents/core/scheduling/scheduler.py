"""Decides what the agent runs next: pulls, starts and preemptions, in the order of its virtual queue.

`serve` runs after every event except tokens. So no rule here scans all requests, unless some of them are to
be preempted or returned.
"""

from collections.abc import Iterator
from typing import Final

from qlm.agents.core.lifecycle import Cause, advance, expire, repeat_aborts
from qlm.agents.core.request import TrackedRequest, pace_of
from qlm.agents.core.scheduling.concurrency_limit import requests_over_limit
from qlm.agents.core.scheduling.demotion import late_behind, needs_demotion_scan, others_wait, too_late
from qlm.agents.core.scheduling.hosting.rule import serve_batch
from qlm.agents.core.scheduling.model_swap import defer_other_models, start_engine, toward_swap
from qlm.agents.core.scheduling.preemption import cannot_wait, preempt, preempt_for
from qlm.agents.core.scheduling.prefill_limit import computed_tokens, prompts_wanted
from qlm.agents.core.scheduling.reader_limit import follow_readers
from qlm.agents.core.scheduling.starting import start, too_large
from qlm.agents.core.scheduling.visits.home import go_home
from qlm.agents.core.scheduling.visits.rule import keep_visit, leave, may_begin
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action, ProbeEngine, Pull
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import ModelId

OVERCOMMIT_AFTER_NS: Final = 4_000_000_000
"""Best-effort work is queued in the engine only this long after the last start of SLO-bound work, which would
wait behind it, or have to preempt it, too."""


def serve(state: AgentState, now_ns: int) -> list[Action]:
    """Decide what to pull, start, preempt or swap now."""
    requests, engines = state.requests, state.engines
    actions = _due(state, now_ns)
    if engines.swapping_to is not None:
        return actions
    if engines.suspect:
        return actions + _probe(state, now_ns)
    for tracked in requests.ready_except(engines.active):
        # Another instance may have the model of this request awake.
        actions += advance(requests, tracked, Cause.RETURNED, why="its model is not awake here")
    if state.draining:
        return actions
    if engines.active is None:
        state.queue.restrict(None)
        return actions + start_engine(state, state.queue.group(now_ns), now_ns)
    actions += _limit_concurrency(state, now_ns)
    requests.kv.overcommits = _may_overcommit(state, engines.active, now_ns)
    has_enough = requests.kv.pool_in_engine and requests.kv.best_effort_places <= 0
    state.queue.pass_best_effort_of(engines.active if has_enough else None)
    if state.settings.visits:
        return actions + _visit(state, engines.active, now_ns)
    return actions + _follow_queue(state, engines.active, now_ns)


def _visit(state: AgentState, model: ModelId, now_ns: int) -> list[Action]:
    """Serve the awake model until its visit ends."""
    decision = keep_visit(state, model, now_ns)
    if decision is not None:
        return leave(state, decision, now_ns)
    return go_home(state, model, now_ns) or _fill(state, model, state.queue.group(now_ns), now_ns)


def _follow_queue(state: AgentState, model: ModelId, now_ns: int) -> list[Action]:
    """Serve groups strictly in the order of the virtual queue, whatever swaps that takes."""
    actions: list[Action] = []
    defer_other_models(state, now_ns)
    head = state.queue.group(now_ns)
    if head is None or head.cls.model == model:
        return actions + _fill(state, model, head, now_ns)
    if _serves_first(state, head, now_ns):
        return actions + _fill(state, model, None, now_ns)
    return actions + toward_swap(state, head, now_ns)


def _serves_first(state: AgentState, head: Group, now_ns: int) -> bool:
    """Return True if requests that were pulled are served before a head that needs another model.

    They were, while the awake model was first in the queue. Those that a batch policy lets wait here are not
    served before a head that cannot wait.
    """
    requests = state.requests
    if state.queue.pulling or requests.leasing:
        return True
    if not requests.new or not requests.kv.pool_waits_here:
        return requests.new > 0
    if state.queue.committed or not requests.running:
        return not state.queue.committed
    deadline_ns = head.hopeful_deadline_ns(now_ns)
    return deadline_ns is None or not cannot_wait(state, head.cls, deadline_ns, now_ns)


def _due(state: AgentState, now_ns: int) -> list[Action]:
    actions: list[Action] = []
    if state.requests.drop_times.pending:
        actions += expire(state.requests, state.alarm, now_ns)
    if state.requests.abort_checks.pending:
        actions += repeat_aborts(state.requests, now_ns)
    return actions


def _probe(state: AgentState, now_ns: int) -> list[Action]:
    """Probe a suspect engine, one probe at a time and with pauses."""
    engines = state.engines
    if engines.probe_after_ns is None:
        return []
    if now_ns < engines.probe_after_ns:
        state.alarm.want(engines.probe_after_ns)
        return []
    engines.probe_after_ns = None
    return [ProbeEngine(token_s=engines.token_due_s)]


def _limit_concurrency(state: AgentState, now_ns: int) -> list[Action]:
    if state.engines.capacity is None or state.requests.kv.pool:
        return []
    requests, stats, actions = state.requests, state.stats, list[Action]()
    paced = state.settings.limits_concurrency
    for tracked in requests_over_limit(
        stats.concurrency, requests, stats.work, state.alarm, now_ns, paced=paced
    ):
        actions += preempt(state, tracked, "for the pace of others", now_ns)
    return actions


def _may_overcommit(state: AgentState, model: ModelId, now_ns: int) -> bool:
    last = state.queue.last_slo_start
    if last is not None and now_ns - last.at_ns < OVERCOMMIT_AFTER_NS:
        return False
    ready = state.requests.ready_for(model)
    return len(ready) <= ready.new  # Else preempted requests wait for a slot; nothing may go before them.


def _fill(state: AgentState, model: ModelId, head: Group | None, now_ns: int) -> list[Action]:
    """Start READY requests and pull from the head group into free slots; else consider preemption."""
    if model in state.hosts:
        return serve_batch(state, model, now_ns) + _pull_first(state, head, now_ns)
    requests = state.requests
    actions: list[Action] = []
    for tracked in _to_begin(state, model):
        follow_readers(state, model, pace_of(tracked.request))
        if _must_demote(state, tracked, now_ns):
            why = "it cannot be in time any more, others can"
            actions += advance(requests, tracked, Cause.DEMOTED, why=why)
            state.stats.demotion_runs.demoted(tracked.request.cls, now_ns)
            continue
        preempted = tracked.generation.preempted
        if _goes_first(state, head, tracked) or (preempted and not _slot_left(state, tracked)):
            break
        if not requests.kv.ever_fits(tracked.tokens):
            actions += too_large(state, tracked)
        elif requests.kv.fits(tracked.tokens, best_effort=tracked.best_effort):
            if not requests.prefill.takes(computed_tokens(state, tracked)):
                return actions
            actions += start(state, tracked, now_ns)
        else:
            request = tracked.request
            least = 1 + _over_pace(state)
            return actions + preempt_for(
                state,
                tracked.urgency,
                request.cls,
                request.deadline_ns,
                least,
                now_ns,
                least=least,
                tokens=tracked.tokens,
            )
    return actions + _pull_first(state, head, now_ns)


def _to_begin(state: AgentState, model: ModelId) -> Iterator[TrackedRequest]:
    """Yield the READY requests of a model, most urgent first, without those that a visit does not begin.

    Of equal requests the first is the most urgent: if it can wait for the next visit, so can the others.
    """
    refused = set[tuple[RequestClass, bool]]()
    for tracked in tuple(state.requests.ready_for(model)):
        kind = tracked.request.cls, tracked.preemptible
        if not state.settings.visits or (kind not in refused and may_begin(state, tracked)):
            yield tracked
        else:
            refused.add(kind)


def _must_demote(state: AgentState, tracked: TrackedRequest, now_ns: int) -> bool:
    if state.requests.kv.pool and state.requests.kv.fits(tracked.tokens, best_effort=tracked.best_effort):
        return False  # Its batch policy weighs it against the others.
    if not state.settings.demotes or not too_late(tracked, state.stats, now_ns):
        return False
    return others_wait(state.requests, state.queue, now_ns)


def _goes_first(state: AgentState, head: Group | None, tracked: TrackedRequest) -> bool:
    """Return True if the head precedes a READY request. Within a class the first pulled goes first."""
    if head is None or head.cls is tracked.request.cls or head.cls == tracked.request.cls:
        return False
    return state.queue.urgency[:2] < tracked.urgency[:2]


def _slot_left(state: AgentState, tracked: TrackedRequest) -> bool:
    """Return True if a slot is left beside those that pulled messages will take."""
    kv = state.requests.kv
    limit = kv.best_effort_limit if tracked.best_effort and not kv.pool else kv.seqs_max + kv.pool
    return kv.running + len(state.requests.leasing) + state.queue.pulling < min(limit, kv.paced_limit)


def _pull_first(state: AgentState, head: Group | None, now_ns: int) -> list[Action]:
    """Pull from the head group, or wait for the end of a back-off."""
    if head is not None:
        return _pull(state, head, now_ns) or _scan_behind(state, head, now_ns)
    if (until_ns := state.queue.until_ns) is not None:
        state.alarm.want(max(until_ns, now_ns + 1))
    return []


def _scan_behind(state: AgentState, head: Group, now_ns: int) -> list[Action]:
    """Pull from a group behind the head what is too late there, to demote it."""
    model, requests, queue = state.engines.active, state.requests, state.queue
    if model is None or not state.settings.demotes or requests.kv.pool:
        return []
    found = late_behind(head, model, requests, queue, state.stats, now_ns)
    if found is None:
        return []
    group, count = found
    limit = min(state.settings.pull_max, count)
    queue.pulling += limit
    queue.scanned(group)
    state.stats.operations.pull_began(group, now_ns)
    return [Pull(group=group.id, cls=group.cls, limit=limit)]


def _waiting_here(state: AgentState, head: Group) -> int:
    """Return the places of a pool in the agent that are taken; less urgent ones keep none from the head."""
    requests = state.requests
    if not requests.kv.pool_waits_here:
        return 0
    return requests.ready_for(head.cls.model).as_urgent_as(state.queue.urgency)


def _pull(state: AgentState, head: Group, now_ns: int) -> list[Action]:
    requests, queue, settings = state.requests, state.queue, state.settings
    follow_readers(state, head.cls.model, head.cls.tokens_per_s)
    leasing, pulling = len(requests.leasing), queue.pulling
    slots = requests.kv.free_slots(best_effort=head.cls.due_ms is None)
    if slots:
        slots -= leasing + pulling + _waiting_here(state, head)
    if slots <= 0 and (leasing or pulling):
        return []
    if slots > 0:
        slots = min(slots, prompts_wanted(state, head.cls))
        if not slots:
            return []
    wanted = queue.left(head) - pulling
    crowded = not requests.kv.pool or slots <= 0
    scan = settings.demotes and crowded and needs_demotion_scan(head, requests, queue, state.stats, now_ns)
    limit = min(settings.pull_max if scan else slots, wanted, settings.pull_max)
    if limit > 0:
        queue.pulling += limit
        state.stats.operations.pull_began(head, now_ns)
        return [Pull(group=head.id, cls=head.cls, limit=limit)]
    if slots > 0 or leasing or pulling or requests.kv.pool_waits_here:
        return []
    over = _over_pace(state)
    count = max(1, wanted) + over
    return preempt_for(state, queue.urgency, head.cls, head.deadline_ns, count, now_ns, least=1 + over)


def _over_pace(state: AgentState) -> int:
    """Return by how many requests the batch is larger than its readers allow."""
    return max(0, state.requests.kv.in_batch - state.requests.kv.paced_limit)
