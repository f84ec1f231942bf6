"""What an agent serves next: request pulling, eviction and model swaps, from the order of its virtual queue.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING

from qlm.agents.eviction import must_make_room, victims
from qlm.agents.held import Held, Phase, Then, urgency
from qlm.agents.kv_ledger import fits, room
from qlm.domain.actions import Abort, Action, NoteResumed, ProbeEngine, Pull, SetTimer, Submit, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

_GENERATING = (Phase.RUNNING, Phase.ABORTING)
_RECHECK_NS = 50_000_000
_ABORT_AGAIN_NS = 1_000_000_000


def serve(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Decide what to pull, start, evict or swap now."""
    actions = [*_expire(agent, now_ns), *_abort_again(agent, now_ns)]
    if agent.swapping_to is not None:
        return actions
    if agent.suspect:
        return actions + _probe(agent, now_ns)
    actions += _send_back_foreign(agent, now_ns)
    if agent.draining:
        return actions
    head = _head(agent, now_ns)
    if agent.active is None:
        return actions + _bring_up(agent, head, now_ns)
    if head is None or head.cls.model == agent.active:
        return actions + _fill(agent, head, now_ns)
    if agent.pulling or any(_is_fresh(held) for held in agent.held.values()):
        # Pulled before the other model's turn came: it was first, so it goes first.
        return actions + _fill(agent, None, now_ns)
    return actions + _toward_swap(agent, head, now_ns)


def _is_fresh(held: Held) -> bool:
    return held.phase is Phase.LEASING or (held.phase is Phase.STAGED and not held.parked)


def end(agent: "AgentProtocol", id: RequestId, outcome: Outcome, why: str, now_ns: int) -> list[Action]:
    """End a held request with an outcome of our own, whatever it is doing."""
    held = agent.held.get(id)
    if held is None or (held.then is Then.END and held.outcome is not None):
        return []
    held.outcome = outcome
    return _stop(agent, held, Then.END, why, now_ns)


def give_all_back(agent: "AgentProtocol", why: str, now_ns: int) -> list[Action]:
    """Return every request that can be resumed elsewhere; pinned ones that have begun may finish."""
    actions: list[Action] = []
    for held in agent.held.values():
        begun = held.phase in _GENERATING and held.request.evictability is Evictability.PINNED
        if held.then is None and not begun:
            actions += _stop(agent, held, Then.RETURN, why, now_ns)
    return actions


def _stop(agent: "AgentProtocol", held: Held, then: Then, why: str, now_ns: int) -> list[Action]:
    held.then, held.why = then, why
    if held.phase is Phase.RUNNING:
        held.phase, held.aborted_ns = Phase.ABORTING, now_ns
        return [Abort(call_ids=(held.call_id,))]
    if held.phase is Phase.STAGED:
        held.phase = Phase.CLOSING
    agent.dirty.add(held.request.id)
    return []


def _expire(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    actions: list[Action] = []
    for held in agent.held.values():
        drop_at_ns = held.request.drop_at_ns
        if drop_at_ns is None or (held.then is Then.END and held.outcome is not None):
            continue
        if drop_at_ns <= now_ns:
            held.outcome = Outcome.EXPIRED
            actions += _stop(agent, held, Then.END, "its deadline passed", now_ns)
        else:
            actions.append(SetTimer(at_ns=drop_at_ns))
    return actions


def _abort_again(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Repeat aborts without effect: one that overtakes its submission is ignored by the engine."""
    late = [
        held
        for held in agent.held.values()
        if held.phase is Phase.ABORTING and held.aborted_ns + _ABORT_AGAIN_NS <= now_ns
    ]
    for held in late:
        held.aborted_ns = now_ns
    return [Abort(call_ids=tuple(held.call_id for held in late))] if late else []


def _probe(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Ask an engine in doubt whether it is well, one question at a time and with pauses."""
    if agent.probe_after_ns is None or now_ns < agent.probe_after_ns:
        return []
    agent.probe_after_ns = None
    return [ProbeEngine()]


def _send_back_foreign(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Return staged requests whose model is not awake: another instance may have it."""
    actions: list[Action] = []
    for held in agent.held.values():
        if held.phase is Phase.STAGED and held.request.model != agent.active:
            actions += _stop(agent, held, Then.RETURN, "its model is not awake here", now_ns)
    return actions


def _head(agent: "AgentProtocol", now_ns: int) -> Group | None:
    """Return the first group of the virtual queue that has something to pull."""
    for group in agent.queue.groups:
        if (
            group.remaining > agent.taken.get(group.id, 0)
            and agent.dry.over(group.id, now_ns)
            and agent.failed_until_ns.get(group.cls.model, 0) <= now_ns
            and group.cls.model in agent.models
        ):
            return group
    return None


def _urgency(group: Group) -> tuple[int, float, int]:
    return urgency(group.cls.priority, group.deadline_ns, group.head_arrival_ns or 0)


def _bring_up(agent: "AgentProtocol", head: Group | None, now_ns: int) -> list[Action]:
    """Without an awake engine: start the one the virtual queue asks for, else the first model."""
    if head is not None:
        return _swap(agent, head.cls.model)
    retry_ns = min((at_ns for at_ns in agent.failed_until_ns.values() if at_ns > now_ns), default=None)
    return _swap(agent, agent.models[0]) if retry_ns is None else [SetTimer(at_ns=retry_ns)]


def _swap(agent: "AgentProtocol", model: ModelId) -> list[Action]:
    agent.swapping_to = model
    agent.head_since = None
    agent.active, agent.capacity = None, None
    agent.engines[model] = EngineState.STARTING
    return [SwapModel(model=model)]


def _toward_swap(agent: "AgentProtocol", head: Group, now_ns: int) -> list[Action]:
    """Let the present model's requests run out, or evict them if the head cannot wait; then swap."""
    if agent.head_since is None or agent.head_since[0] != head.id:
        agent.head_since = (head.id, now_ns)
    due_ns = agent.head_since[1] + round(agent.settings.swap_after_s * 1e9)
    if now_ns < due_ns:
        return [SetTimer(at_ns=due_ns)]
    running = [h for h in agent.held.values() if h.phase in _GENERATING]
    if not running:
        busy = agent.pulling or any(h.phase is not Phase.STAGED for h in agent.held.values())
        actions = give_all_back(agent, f"swapping to {head.cls.model}", now_ns)
        return actions if busy or agent.held else [*actions, *_swap(agent, head.cls.model)]
    actions = [SetTimer(at_ns=now_ns + _RECHECK_NS)]
    candidates = [h for h in running if h.phase is Phase.RUNNING]
    if must_make_room(candidates, deadline_ns=head.deadline_ns, now_ns=now_ns, pace=agent.pace):
        for victim in victims(candidates, head=_urgency(head), count=len(candidates)):
            why = f"evicted: {head.id} needs {head.cls.model}"
            actions += _stop(agent, victim, Then.RETURN, why, now_ns)
    return actions


def _fill(agent: "AgentProtocol", head: Group | None, now_ns: int) -> list[Action]:
    """Start staged requests and pull from the head group while there is room; else see about evicting."""
    actions: list[Action] = []
    staged = sorted((h for h in agent.held.values() if h.phase is Phase.STAGED), key=lambda h: h.urgency)
    for held in staged:
        if held.parked and (_comes_first(head, held) or not _has_place(agent)):
            break
        if not _start(agent, held, now_ns, actions):
            return actions + _evict_for(agent, held.urgency, held.request.deadline_ns, 1, now_ns)
    if head is None:
        return actions
    return actions + _pull(agent, head, now_ns)


def _comes_first(head: Group | None, held: Held) -> bool:
    return head is not None and _urgency(head)[:2] < held.urgency[:2]


def _has_place(agent: "AgentProtocol") -> bool:
    """Whether a place in the batch is left that no request on its way here was pulled for."""
    assert agent.capacity is not None
    taken = sum(h.phase in (*_GENERATING, Phase.LEASING) for h in agent.held.values())
    return taken + agent.pulling < agent.capacity.seqs_max


def _start(agent: "AgentProtocol", held: Held, now_ns: int, actions: list[Action]) -> bool:
    """Submit a staged request if it fits; False if it must wait."""
    assert agent.capacity is not None
    assert held.request.model == agent.active
    if agent.capacity.blocks(held.tokens) > agent.capacity.kv_blocks:
        held.outcome = Outcome.FAILED
        why = f"it needs a KV cache of {held.tokens} tokens; this engine has {agent.capacity.kv_tokens}"
        _stop(agent, held, Then.END, why, now_ns)
        return True
    running = [h.tokens for h in agent.held.values() if h.phase in _GENERATING]
    if not fits(agent.capacity, room(agent.capacity, running), held.tokens, alone=not running):
        return False
    call = held.next_call()
    agent.calls[call.call_id] = held.request.id
    held.phase, held.started_ns = Phase.RUNNING, now_ns
    if held.parked and held.epoch is not None:
        held.parked = False
        actions.append(NoteResumed(id=held.request.id, epoch=held.epoch))
    actions.append(Submit(id=held.request.id, call=call))
    return True


def _pull(agent: "AgentProtocol", head: Group, now_ns: int) -> list[Action]:
    assert agent.capacity is not None
    free = room(agent.capacity, (h.tokens for h in agent.held.values() if h.phase in _GENERATING))
    leasing = sum(h.phase is Phase.LEASING for h in agent.held.values())
    places = free.seqs - leasing - agent.pulling if free.blocks else 0
    wanted = head.remaining - agent.taken.get(head.id, 0) - agent.pulling
    limit = min(places, wanted, agent.settings.pull_max)
    if limit > 0:
        agent.pulling += limit
        return [Pull(group=head.id, cls=head.cls, limit=limit)]
    if places > 0 or leasing or agent.pulling:
        return []
    return _evict_for(agent, _urgency(head), head.deadline_ns, max(1, wanted), now_ns)


def _evict_for(
    agent: "AgentProtocol", head: tuple[int, float, int], deadline_ns: int | None, count: int, now_ns: int
) -> list[Action]:
    """Evict less urgent requests if waiting for room would make the head late."""
    running = [h for h in agent.held.values() if h.phase is Phase.RUNNING]
    leaving = sum(h.phase is Phase.ABORTING for h in agent.held.values())
    if not running or leaving >= count:
        return []
    if not must_make_room(running, deadline_ns=deadline_ns, now_ns=now_ns, pace=agent.pace):
        return [SetTimer(at_ns=now_ns + _RECHECK_NS)] if deadline_ns is not None else []
    actions: list[Action] = []
    for victim in victims(running, head=head, count=count - leaving):
        actions += _stop(agent, victim, Then.PARK, "evicted for more urgent work", now_ns)
    return actions
