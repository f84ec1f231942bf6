"""How an agent takes messages and leases in hand, and keeps them. The lease decides, never the delivery.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING

from qlm.agents.events import LeaseAnswered, Pulled
from qlm.agents.held import Held, Phase, Then
from qlm.agents.log_writer import forget
from qlm.domain.actions import (
    Ack,
    Action,
    HandOver,
    PulledMessage,
    Renew,
    Reregister,
    Return,
    SetTimer,
    TakeLease,
)
from qlm.domain.ids import GroupId
from qlm.domain.lease_answer import Granted, Over
from qlm.domain.lease_answer import Held as HeldElsewhere
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol


def pulled(agent: "AgentProtocol", event: Pulled, now_ns: int) -> list[Action]:
    """Take messages in hand and ask for their leases."""
    if event.group is not None:
        agent.pulling -= event.asked
        if event.messages:
            agent.dry.found(event.group)
            agent.head_since = None
        if len(event.messages) < event.asked:
            agent.dry.empty(event.group, now_ns)
        agent.taken[event.group] = agent.taken.get(event.group, 0) + len(event.messages)
    actions: list[Action] = []
    for message in event.messages:
        actions += _take(agent, message, event.group, now_ns)
    return actions


def lease_answered(agent: "AgentProtocol", event: LeaseAnswered, now_ns: int) -> list[Action]:
    """Stage a request whose lease is granted; get rid of the message otherwise."""
    held = agent.held.get(event.id)
    if held is None or held.epoch is not None:
        return []
    match event.answer:
        case Granted(lease=lease, output=output):
            held.epoch = lease.epoch
            agent.dirty.add(event.id)
            if held.phase is not Phase.LEASING:
                held.logged = held.sent = min(len(output), len(held.output))
                return []
            held.output = list(output)
            held.logged = held.sent = len(output)
            _stage(agent, held)
            return []
        case HeldElsewhere(holder=holder):
            _not_of_its_group(agent, held)
            return [*forget(agent, held), HandOver(delivery=held.delivery, holder=holder)]
        case Over():
            _not_of_its_group(agent, held)
            return [*forget(agent, held), Ack(delivery=held.delivery)]
        case None if held.phase is Phase.LEASING:
            forgotten = forget(agent, held)
            agent.dry.put_off(held.group, now_ns + round(agent.settings.retry_s * 1e9))
            back = Return(
                id=event.id,
                epoch=None,
                delivery=held.delivery,
                home=held.request.cls.queue,
                why="store unavailable",
            )
            return [*forgotten, back]
        case None:
            agent.unregistered.add(event.id)
            agent.reregister_after_ns = now_ns + round(agent.settings.retry_s * 1e9)
            return [SetTimer(at_ns=agent.reregister_after_ns)]


def reregistrations(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Tell a store that forgot them what runs here, again and again until it answers."""
    if not agent.unregistered or now_ns < agent.reregister_after_ns:
        return []
    lost = [agent.held[id] for id in sorted(agent.unregistered)]
    agent.unregistered.clear()
    return [Reregister(card=held.request.card(), output=tuple(held.output)) for held in lost]


def renewals(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Renew custody of messages held for long, before the broker takes them away."""
    custody_ns = round(agent.settings.custody_s * 1e9)
    if now_ns < agent.renew_after_ns:
        return []
    agent.renew_after_ns = now_ns + custody_ns // 10
    actions: list[Action] = []
    for held in agent.held.values():
        if held.custody_ns + custody_ns <= now_ns:
            held.custody_ns = now_ns
            actions.append(Renew(delivery=held.delivery))
    return actions


def _take(agent: "AgentProtocol", message: PulledMessage, group: GroupId | None, now_ns: int) -> list[Action]:
    request = message.request
    mine = agent.held.get(request.id)
    if mine is not None:
        # Ours came back to us (lost channel, renewal) or was published twice: one message is enough.
        spare, mine.delivery, mine.custody_ns = mine.delivery, message.delivery, now_ns
        return [Ack(delivery=spare)]
    if agent.draining or request.model not in agent.models:
        why = "draining" if agent.draining else f"{request.model} is not served here"
        return [Return(id=request.id, epoch=None, delivery=message.delivery, home=request.cls.queue, why=why)]
    agent.held[request.id] = Held(request=request, delivery=message.delivery, custody_ns=now_ns, group=group)
    return [TakeLease(card=request.card(), group=group)]


def _stage(agent: "AgentProtocol", held: Held) -> None:
    held.phase = Phase.STAGED
    finished = held.finished_by_log()
    if held.then is not None:
        held.phase = Phase.CLOSING
    elif finished is not None:
        held.phase, held.then, held.outcome = Phase.CLOSING, Then.END, finished
    elif held.output and held.request.evictability is Evictability.PINNED:
        held.phase, held.then, held.outcome = Phase.CLOSING, Then.END, Outcome.ENGINE_LOST
        held.why = "its instance was lost and it cannot be resumed exactly"
    elif agent.draining:
        held.phase, held.then, held.why = Phase.CLOSING, Then.RETURN, "draining"


def _not_of_its_group(agent: "AgentProtocol", held: Held) -> None:
    """Take back the count of a pull that brought no work: its group still has all it had."""
    if held.group is not None and agent.taken.get(held.group, 0):
        agent.taken[held.group] -= 1
