"""Acquires leases for pulled messages, registers them again in an emptied store, and renews old deliveries.

The lease, not the broker delivery, decides ownership.
"""

from dataclasses import replace

from qlm.agents.core.events import LeaseAnswered, Pulled
from qlm.agents.core.lifecycle import Cause, advance, leased
from qlm.agents.core.request import Phase, TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.state import AgentState, LeaseTimes
from qlm.agents.core.timers import Alarm
from qlm.domain.actions import (
    Ack,
    AcquireLease,
    Action,
    ForwardMessage,
    PulledMessage,
    ReleaseLease,
    RenewDelivery,
    RestoreRequest,
    Return,
)
from qlm.domain.ids import GroupId, TokenIds
from qlm.domain.lease_answer import Granted, IdTaken, LeaseHeldElsewhere, Over
from qlm.domain.notices import LeaseHeld


def pulled(state: AgentState, event: Pulled, now_ns: int) -> list[Action]:
    """Track the requests of pulled messages and request their leases."""
    if event.group is not None:
        came = len(event.messages)
        state.stats.operations.pulled(event.group, came, now_ns)
        state.queue.pulled(event.group, limit=event.limit, came=came, now_ns=now_ns)
    actions: list[Action] = []
    for message in event.messages:
        actions += _track(state, message, event.group, now_ns)
    return actions


def lease_answered(state: AgentState, event: LeaseAnswered, now_ns: int) -> list[Action]:
    """Make a request READY if its lease is granted; otherwise dispose of the message."""
    requests, retry_at_ns = state.requests, now_ns + state.settings.retry_ns
    tracked = requests.all.get(event.id)
    if tracked is None or tracked.claim.epoch is not None:
        return []
    claim = tracked.claim
    match event.answer:
        case Granted(lease=lease) as granted:
            claim.epoch = lease.epoch
            return _granted(requests, tracked, granted)
        case LeaseHeldElsewhere(holder=holder):
            state.queue.give_back(claim.group)
            forgotten = advance(requests, tracked, Cause.FORGOTTEN)
            return [*forgotten, ForwardMessage(delivery=claim.delivery, holder=holder)]
        case Over() | IdTaken():
            state.queue.give_back(claim.group)
            return [*advance(requests, tracked, Cause.FORGOTTEN), Ack(delivery=claim.delivery)]
        case None if tracked.phase is Phase.LEASING:
            forgotten = advance(requests, tracked, Cause.FORGOTTEN)
            state.queue.put_off(claim.group, retry_at_ns)
            return [*forgotten, tracked.to_queue(None, "store unavailable")]
        case None:
            requests.to_restore.add(event.id)
            state.lease_times.restore_after_ns = retry_at_ns
            return []


def lease_held(requests: RequestTable, event: LeaseHeld) -> list[Action]:
    """Release a lease that only the store knows of: a request that has left here would run for ever.

    It is released behind all that is still to be done with requests that have left; if that ends its epoch,
    the store refuses this.
    """
    if event.id in requests.all:
        return []
    return [ReleaseLease(id=event.id, epoch=event.epoch, why="its agent does not have it")]


def _granted(requests: RequestTable, tracked: TrackedRequest, granted: Granted) -> list[Action]:
    output, generation = granted.output, tracked.generation
    tracked.claim.writing = False  # what was sent under another lease counts no more
    if tracked.phase is Phase.LEASING:
        tracked.output = list(output)
        tracked.logged = tracked.sent = len(output)
        if generation.scores is not None:
            generation.scores.sent = len(output)
        generation.preemptions, generation.losses = granted.preemptions, granted.engine_losses
        leased(requests, tracked)
        return []
    # Registered again after the store had lost it: its log is behind ours, or another agent has gone on.
    if list(output) != tracked.output[: len(output)]:
        return _superseded(requests, tracked, output)
    generation.unrecorded = (
        generation.preemptions > granted.preemptions or generation.losses > granted.engine_losses
    )
    if generation.scores is not None:
        generation.scores.sent = 0
    tracked.logged = tracked.sent = len(output)
    requests.output.touch(tracked)
    return []


def _superseded(requests: RequestTable, tracked: TrackedRequest, output: TokenIds) -> list[Action]:
    """Give up own tokens for those in the log: the answer goes on from there, or ends there."""
    outcome = tracked.exit.outcome
    if tracked.phase is Phase.CLOSING and tracked.ended and outcome is not None and not outcome.ok:
        tracked.output = list(output)
        tracked.logged = tracked.sent = len(output)
        if tracked.generation.scores is not None:
            tracked.generation.scores.sent = len(output)
        requests.output.touch(tracked)
        return []
    epoch = tracked.claim.epoch
    forgotten = advance(requests, tracked, Cause.FORGOTTEN)
    return [*forgotten, tracked.to_queue(epoch, "another instance has gone on with it")]


def restorations(requests: RequestTable, times: LeaseTimes, alarm: Alarm, now_ns: int) -> list[Action]:
    """Register the requests again that the store has lost, until it answers."""
    if now_ns < times.restore_after_ns:
        alarm.want(times.restore_after_ns)
        return []
    lost = [requests.all[id] for id in sorted(requests.to_restore)]
    requests.to_restore.clear()
    return [
        RestoreRequest(metadata=tracked.request.metadata(), output=tuple(tracked.output)) for tracked in lost
    ]


def renewals(requests: RequestTable, times: LeaseTimes, renewal_s: float, now_ns: int) -> list[Action]:
    """Renew old deliveries before the broker's acknowledgement timeout takes them away."""
    renewal_ns = round(renewal_s * 1e9)
    times.renew_after_ns = now_ns + renewal_ns // 10
    actions: list[Action] = []
    for tracked in requests.all.values():
        if tracked.claim.delivered_ns + renewal_ns <= now_ns:
            tracked.claim.delivered_ns = now_ns
            actions.append(RenewDelivery(delivery=tracked.claim.delivery))
    return actions


def check(requests: RequestTable, times: LeaseTimes, check_s: float, now_ns: int) -> None:
    """Have an empty entry written for each request that has written nothing since the check before.

    The answer to a write reports a lease that has expired, or a request that the store has lost. One that
    waits for a slot or for its first token writes nothing, and its message would be in no queue.
    """
    times.check_after_ns = now_ns + round(check_s * 1e9)
    for tracked in requests.all.values():
        claim, before = tracked.claim, tracked.claim.sent_at_check
        claim.sent_at_check = tracked.sent
        quiet = before == tracked.sent == len(tracked.output) and not claim.writing
        if quiet and claim.epoch is not None and tracked.phase is not Phase.CLOSING:
            requests.output.place(tracked, ends=False)


def _track(state: AgentState, message: PulledMessage, group: GroupId | None, now_ns: int) -> list[Action]:
    request, delivery = message.request, message.delivery
    known = state.requests.all.get(request.id)
    if known is not None:
        same = known.request.is_same_request(request)
        return _duplicate(known, message, now_ns) if same else _id_taken(known, message)
    if state.draining or request.model not in state.engines.models:
        why = "draining" if state.draining else f"{request.model} is not served here"
        return [Return(id=request.id, epoch=None, delivery=delivery, home=request.cls.queue, why=why)]
    state.requests.add(TrackedRequest(request, delivery=delivery, delivered_ns=now_ns, group=group))
    return [AcquireLease(metadata=request, group=group)]


def _id_taken(tracked: TrackedRequest, message: PulledMessage) -> list[Action]:
    """Drop the message of another request with the id of a tracked one, once the store has decided."""
    request, delivery = message.request, message.delivery
    if tracked.claim.epoch is not None:
        return [Ack(delivery=delivery)]
    why = "two bodies came with one Idempotency-Key"
    return [Return(id=request.id, epoch=None, delivery=delivery, home=request.cls.queue, why=why)]


def _duplicate(tracked: TrackedRequest, message: PulledMessage, now_ns: int) -> list[Action]:
    """Keep one of two messages of a tracked request, and acknowledge the other.

    The message was delivered again (lost channel, renewal) or published twice, perhaps by an interrupted
    demotion. The one from the demoted class is kept: requests only ever move there, and the request is later
    returned to the queue of its class.
    """
    claim, was_late, is_late = tracked.claim, tracked.request.cls.late, message.request.cls.late
    if was_late and not is_late:
        # Our delivery may be lost, and its message moved to this queue by the controller: publish it again.
        other = message.delivery
        return [RenewDelivery(delivery=claim.delivery, other=other), Ack(delivery=other)]
    if is_late and not was_late:
        tracked.request = replace(tracked.request, cls=tracked.request.cls.missed())
    duplicate, claim.delivery, claim.delivered_ns = claim.delivery, message.delivery, now_ns
    return [Ack(delivery=duplicate)]
