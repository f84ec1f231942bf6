"""How an agent takes messages and leases in hand, and keeps them. The lease decides, never the delivery.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from dataclasses import replace
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
    TakeLease,
)
from qlm.domain.ids import GroupId
from qlm.domain.lease_answer import Granted, Over
from qlm.domain.lease_answer import Held as HeldElsewhere
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Delivery
from qlm.domain.sampling import Evictability

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol


def pulled(agent: "AgentProtocol", event: Pulled, now_ns: int) -> list[Action]:
    """Take messages in hand and ask for their leases."""
    if event.group is not None:
        agent.pulling -= event.asked
        agent.tally.pulled(event.group, len(event.messages), now_ns)
        if event.messages:
            agent.head_since = None
        agent.head.pulled(event.group, asked=event.asked, came=len(event.messages), now_ns=now_ns)
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
            agent.unwritten.touch(held)
            if held.phase is not Phase.LEASING:
                held.logged = held.sent = min(len(output), len(held.output))
                return []
            held.output = list(output)
            held.logged = held.sent = len(output)
            _stage(agent, held)
            return []
        case HeldElsewhere(holder=holder):
            agent.head.give_back(held.group)
            return [*forget(agent, held), HandOver(delivery=held.delivery, holder=holder)]
        case Over():
            agent.head.give_back(held.group)
            return [*forget(agent, held), Ack(delivery=held.delivery)]
        case None if held.phase is Phase.LEASING:
            forgotten = forget(agent, held)
            agent.head.put_off(held.group, now_ns + agent.retry_ns)
            return [*forgotten, held.back(None, "store unavailable")]
        case None:
            agent.unregistered.add(event.id)
            agent.reregister_after_ns = now_ns + agent.retry_ns
            return []


def reregistrations(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Tell a store that forgot them what runs here, again and again until it answers."""
    if now_ns < agent.reregister_after_ns:
        agent.alarm.want(agent.reregister_after_ns)
        return []
    lost = [agent.held[id] for id in sorted(agent.unregistered)]
    agent.unregistered.clear()
    return [Reregister(card=held.request.card(), output=tuple(held.output)) for held in lost]


def renewals(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Renew custody of messages held for long, before the broker takes them away."""
    custody_ns = round(agent.settings.custody_s * 1e9)
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
        return [Ack(delivery=_spare(mine, message, now_ns))]
    if agent.draining or request.model not in agent.models:
        why = "draining" if agent.draining else f"{request.model} is not served here"
        return [Return(id=request.id, epoch=None, delivery=message.delivery, home=request.cls.queue, why=why)]
    held = Held(request=request, delivery=message.delivery, custody_ns=now_ns, group=group)
    agent.hands.take(held)
    if (drop_at_ns := request.drop_at_ns) is not None:
        agent.drops.add(drop_at_ns, held)
    return [TakeLease(card=request, group=group)]


def _spare(mine: Held, message: PulledMessage, now_ns: int) -> Delivery:
    """Keep one of the messages of a request in hand that came again; return the other one.

    It came back to us (lost channel, renewal) or was published twice, perhaps as a demotion that broke off.
    The one from the late class stays: requests only ever go there, and with it the class to return it to.
    """
    was_late, is_late = mine.request.cls.late, message.request.cls.late
    if was_late and not is_late:
        return message.delivery
    if is_late and not was_late:
        mine.request = replace(mine.request, cls=mine.request.cls.missed())
    spare, mine.delivery, mine.custody_ns = mine.delivery, message.delivery, now_ns
    return spare


def _stage(agent: "AgentProtocol", held: Held) -> None:
    """Let a leased request wait for room, unless its log or its history says that nothing is left to do."""
    if held.then is None:
        finished = held.finished_by_log()
        if finished is not None:
            held.then, held.outcome = Then.END, finished
        elif held.output and held.request.evictability is Evictability.PINNED:
            held.then, held.outcome = Then.END, Outcome.ENGINE_LOST
            held.why = "its instance was lost and it cannot be resumed exactly"
        elif agent.draining:
            held.then, held.why = Then.RETURN, "draining"
    agent.hands.move(held, Phase.STAGED if held.then is None else Phase.CLOSING)
