"""What an agent serves next: request pulling and eviction, from the order of its virtual queue.

Works on the state of `agents.protocol.AgentProtocol`. Nothing here looks at all requests, unless some of
them are to be evicted or to go back: it is called with every event but tokens.
"""

from typing import TYPE_CHECKING, Final

from qlm.agents.batch_limit import limit_batch
from qlm.agents.eviction import must_make_room, victims
from qlm.agents.held import Held, Phase, Then
from qlm.agents.kv_swap import kept_in_host
from qlm.agents.lateness import demote, must_sift, too_late
from qlm.agents.stopping import abort_again, expire, park, stop
from qlm.agents.swapping import bring_up, stay, toward_swap
from qlm.domain.actions import Action, NoteResumed, ProbeEngine, Pull, Submit
from qlm.domain.group import Group
from qlm.domain.outcome import Outcome

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

AHEAD_AFTER_NS: Final = 4_000_000_000
"""Work without an objective is submitted ahead of its place when nothing else has started for so long: what
has one would stand behind it, or have to evict it, too."""


def serve(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Decide what to pull, start, evict or swap now."""
    actions = _what_is_due(agent, now_ns)
    if agent.swapping_to is not None:
        return actions
    if agent.suspect:
        return actions + _probe(agent, now_ns)
    for held in agent.hands.staged_except(agent.active):
        # Another instance may have its model awake.
        actions += stop(agent, held, Then.RETURN, "its model is not awake here", now_ns)
    if agent.draining:
        return actions
    stay(agent, now_ns)
    head = agent.head.group(now_ns)
    if agent.active is None:
        return actions + bring_up(agent, head, now_ns)
    actions += limit_batch(agent, now_ns)
    agent.hands.kv.goes_ahead = _goes_ahead(agent, now_ns)
    if head is None or head.cls.model == agent.active:
        return actions + _fill(agent, head, now_ns)
    if agent.pulling or agent.hands.fresh:
        # Pulled before the other model's turn came: it was first, so it goes first.
        return actions + _fill(agent, None, now_ns)
    return actions + toward_swap(agent, head, now_ns)


def _goes_ahead(agent: "AgentProtocol", now_ns: int) -> bool:
    """Whether work may be submitted ahead of its place; not past evicted requests, which wait for one."""
    assert agent.active is not None
    staged = agent.hands.staged_for(agent.active)
    if len(staged) > staged.fresh:
        return False
    return agent.timed is None or now_ns - agent.timed[0] >= AHEAD_AFTER_NS


def _what_is_due(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    actions: list[Action] = []
    if agent.drops.pending:
        actions += expire(agent, now_ns)
    if agent.late_aborts.pending:
        actions += abort_again(agent, now_ns)
    return actions


def _probe(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Ask an engine in doubt whether it is well, one question at a time and with pauses."""
    if agent.probe_after_ns is None:
        return []
    if now_ns < agent.probe_after_ns:
        agent.alarm.want(agent.probe_after_ns)
        return []
    agent.probe_after_ns = None
    return [ProbeEngine()]


def _fill(agent: "AgentProtocol", head: Group | None, now_ns: int) -> list[Action]:
    """Start staged requests and pull from the head group while there is room; else see about evicting."""
    actions: list[Action] = []
    assert agent.active is not None
    staged = agent.hands.staged_for(agent.active)
    while staged:
        held = staged.first()
        if too_late(agent, held, now_ns):
            actions += demote(agent, held, now_ns)
            continue
        if _comes_first(agent, head, held) or (held.parked and not _has_place(agent, held)):
            break
        if not _start(agent, held, now_ns, actions):
            return actions + _evict_for(agent, held.urgency, held.request.deadline_ns, 1, now_ns)
    if head is None:
        return actions
    return actions + _pull(agent, head, now_ns)


def _comes_first(agent: "AgentProtocol", head: Group | None, held: Held) -> bool:
    """Whether the head goes before a staged request; of one class, what was pulled first goes first."""
    if head is None or head.cls == held.request.cls:
        return False
    return agent.head.urgency[:2] < held.urgency[:2]


def _has_place(agent: "AgentProtocol", held: Held) -> bool:
    """Whether a place in the batch is left that no request on its way here was pulled for."""
    hands = agent.hands
    limit = hands.kv.lax_limit if held.lax else hands.kv.seqs_max
    return hands.kv.running + len(hands.leasing) + agent.pulling < limit


def _start(agent: "AgentProtocol", held: Held, now_ns: int, actions: list[Action]) -> bool:
    """Submit a staged request if it fits; False if it must wait."""
    hands = agent.hands
    if not hands.kv.ever_fits(held.tokens):
        assert agent.capacity is not None
        held.outcome = Outcome.FAILED
        why = f"it needs a KV cache of {held.tokens} tokens; this engine has {agent.capacity.kv_tokens}"
        stop(agent, held, Then.END, why, now_ns)
        return True
    if not hands.kv.fits(held.tokens, lax=held.lax):
        return False
    resumed = held.parked
    held.swapped_in = resumed and kept_in_host(agent, held)
    hands.move(held, Phase.RUNNING)
    call = held.next_call()
    agent.calls[call.call_id] = held
    held.started_ns, held.resumed_at = now_ns, len(held.output)
    agent.candidates.started(held)
    if not held.lax:
        agent.timed = (now_ns, held.request.cls.priority, held.request.model)
    agent.work.started(held, len(call.prompt_ids))
    if resumed and held.epoch is not None:
        actions.append(NoteResumed(id=held.request.id, epoch=held.epoch))
    actions.append(Submit(id=held.request.id, call=call))
    return True


def _pull(agent: "AgentProtocol", head: Group, now_ns: int) -> list[Action]:
    hands, pulling = agent.hands, agent.pulling
    leasing = len(hands.leasing)
    places = hands.kv.places(lax=head.cls.due_ms is None)
    if places:
        places -= leasing + pulling
    if places <= 0 and (leasing or pulling):
        return []
    wanted = agent.head.left(head) - pulling
    room = agent.settings.pull_max if must_sift(agent, head, now_ns) else places
    limit = min(room, wanted, agent.settings.pull_max)
    if limit > 0:
        agent.pulling += limit
        agent.tally.pulls(head, now_ns)
        return [Pull(group=head.id, cls=head.cls, limit=limit)]
    if places > 0 or leasing or pulling:
        return []
    return _evict_for(agent, agent.head.urgency, head.deadline_ns, max(1, wanted), now_ns)


def _evict_for(
    agent: "AgentProtocol", head: tuple[int, float, int], deadline_ns: int | None, count: int, now_ns: int
) -> list[Action]:
    """Evict less urgent requests if waiting for room would make the head late.

    Places that come free are taken first by those who wait in the engine, so as many more must go.
    """
    hands = agent.hands
    count += hands.kv.ahead
    leaving = len(hands.aborting)
    if leaving >= count or not must_make_room(agent, head, deadline_ns, now_ns):
        return []
    actions: list[Action] = []
    for victim in victims(hands.running.values(), head=head, count=count - leaving, now_ns=now_ns):
        actions += park(agent, victim, "for more urgent work", now_ns)
    return actions
