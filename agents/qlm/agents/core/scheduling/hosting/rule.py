"""What the agent does for a batch policy that it hosts: it asks, aborts who is not to run, and starts others.

Who is aborted waits here and continues from its last token, as after any preemption. A decision costs what
it costs the engine to compute texts again, so at most one in a second preempts (`QUANTUM_NS`).
"""

from collections.abc import Iterable, Iterator, Set

from qlm.agents.core.lifecycle import Cause, advance
from qlm.agents.core.request import Disposition, Phase, TrackedRequest
from qlm.agents.core.scheduling.demotion import others_wait, too_late
from qlm.agents.core.scheduling.hosting.host import QUANTUM_NS, BatchHost
from qlm.agents.core.scheduling.hosting.views import blocks_for, machine_of
from qlm.agents.core.scheduling.preemption import preempt
from qlm.agents.core.scheduling.starting import start, too_large
from qlm.agents.core.scheduling.visits.rule import may_begin
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action
from qlm.domain.ids import ModelId, RequestId


def serve_batch(state: AgentState, model: ModelId, now_ns: int) -> list[Action]:
    """Put the decisions of the policy for the awake model into effect; ask it if that is due."""
    host, requests, actions = state.hosts[model], state.requests, list[Action]()
    if host.is_due(requests.moves, now_ns):
        actions += _give_up(state, model, now_ns)
        actions += _decide(state, model, host, now_ns)
    actions += _start_coming(state, model, host, now_ns)
    host.served(requests.moves)
    if host.again_ns is not None:
        state.alarm.want(host.again_ns)
    return actions


def _give_up(state: AgentState, model: ModelId, now_ns: int) -> list[Action]:
    """End requests that never fit, and demote late ones while more than the pool wait."""
    requests, actions = state.requests, list[Action]()
    kv, late = requests.kv, "it cannot be in time any more, others can"
    for tracked in list(requests.ready_for(model)):
        if not kv.ever_fits(tracked.tokens):
            actions += too_large(state, tracked)
        elif requests.ready > kv.pool and _must_demote(state, tracked, now_ns):
            actions += advance(requests, tracked, Cause.DEMOTED, why=late)
    return actions


def _must_demote(state: AgentState, tracked: TrackedRequest, now_ns: int) -> bool:
    if not state.settings.demotes or not too_late(tracked, state.stats, now_ns):
        return False
    return others_wait(state.requests, state.queue, now_ns)


def _decide(state: AgentState, model: ModelId, host: BatchHost, now_ns: int) -> list[Action]:
    """Ask the policy if requests are new or gone, or it is time; preempt who is not to run."""
    requests = state.requests
    inside = [*requests.running.values(), *_to_wait_here(requests.aborting.values(), model)]
    outside = [*requests.ready_for(model), *_to_wait_here(requests.closing.values(), model)]
    changed = host.follow((*inside, *outside), now_ns)
    if not changed and not host.is_time(now_ns):
        return []
    if not outside:  # all run
        host.idle()
        return []
    assert state.engines.capacity is not None
    token_s, profile = state.stats.pace_of(model).token_s, state.costs.profiles.get(model)
    blocks = blocks_for(requests.kv, state.engines.capacity, inside, outside)
    machine = machine_of(state.engines.capacity, blocks, profile, token_s)
    return _preempt(state, host, host.decide(inside, outside, machine, token_s, now_ns), now_ns)


def _to_wait_here(stopping: Iterable[TrackedRequest], model: ModelId) -> Iterator[TrackedRequest]:
    """Yield those that were preempted: they will be READY, and are the policy's all the time."""
    for tracked in stopping:
        if tracked.exit.disposition is Disposition.RESUME_HERE and tracked.request.model == model:
            yield tracked


def _preempt(state: AgentState, host: BatchHost, out: Set[RequestId], now_ns: int) -> list[Action]:
    """Abort who is to leave, of those that run and may be."""
    actions, running = list[Action](), state.requests.running.values()
    leaving = [each for each in running if each.id in out and each.preemptible]
    if not leaving:
        return []
    if 0 < host.preempts_from_ns - now_ns <= QUANTUM_NS:  # else the clock was set back
        host.ask_by(host.preempts_from_ns)
        return []
    host.preempts_from_ns = now_ns + QUANTUM_NS
    for tracked in leaving:
        actions += preempt(state, tracked, "for its batch policy", now_ns)
        host.preempted()
    return actions


def _start_coming(state: AgentState, model: ModelId, host: BatchHost, now_ns: int) -> list[Action]:
    """Start the chosen ones that fit now, in order; if nothing runs, the most urgent one in any case."""
    requests, kv, actions = state.requests, state.requests.kv, list[Action]()
    waiting, host.coming = host.coming, []
    for position, tracked in enumerate(waiting):
        if requests.all.get(tracked.id) is not tracked or tracked.phase is Phase.RUNNING:
            continue
        if _may_start(state, tracked):
            actions += start(state, tracked, now_ns)
        elif host.skips:
            host.coming.append(tracked)
        else:
            host.coming = waiting[position:]
            break
    ready = requests.ready_for(model)
    if ready and not kv.running and _may_start(state, ready.first()):
        actions += start(state, ready.first(), now_ns)
    return actions


def _may_start(state: AgentState, tracked: TrackedRequest) -> bool:
    if tracked.phase is not Phase.READY:
        return False
    if not state.requests.kv.fits(tracked.tokens, best_effort=tracked.best_effort):
        return False
    return not state.settings.visits or may_begin(state, tracked)
