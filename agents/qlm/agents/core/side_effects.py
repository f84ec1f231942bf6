"""Side effects of an agent: the store and broker operations of each action, in order.

Production (`agents.shell.side_effects`) and simulation (`simulator.cluster.side_effects`) execute the same
operations, one action after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from qlm.broker.topology import hold_queue
from qlm.domain.actions import (
    Ack,
    DeadLetter,
    Demote,
    ForwardMessage,
    ReleaseLease,
    RenewDelivery,
    ReportParked,
    ReportResumed,
    Return,
)
from qlm.domain.ids import InstanceId, QueueName, RequestId
from qlm.domain.lease import Epoch
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request, RequestMetadata

SideEffect = (
    Ack
    | ReportParked
    | ReportResumed
    | Return
    | ReleaseLease
    | Demote
    | ForwardMessage
    | RenewDelivery
    | DeadLetter
)

Call = TypeVar("Call")
"""A started or prepared call: an awaitable in production."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(Generic[Call]):
    """Store and broker operations.

    `copy` publishes a message to another queue, too; `move` and `dead_letter` also acknowledge it then.
    """

    park: Callable[[RequestId, Epoch, str], Call]
    resume: Callable[[RequestId, Epoch], Call]
    release: Callable[[RequestId, Epoch, str], Call]
    demote: Callable[[RequestMetadata, Epoch, str], Call]
    ack: Callable[[Delivery], Call]
    requeue: Callable[[Delivery], Call]
    copy: Callable[[Delivery, QueueName], Call]
    move: Callable[[Delivery, QueueName], Call]
    publish: Callable[[Request], Call]
    dead_letter: Callable[[Delivery, str], Call]


def calls(effect: SideEffect, instance: InstanceId, on: Services[Call]) -> Iterator[Call]:
    """Yield the calls of one side effect; each must succeed before the next is made."""
    match effect:
        case Ack(delivery=delivery):
            yield on.ack(delivery)
        case ReportParked(id=id, epoch=epoch, why=why):
            yield on.park(id, epoch, why)
        case ReportResumed(id=id, epoch=epoch):
            yield on.resume(id, epoch)
        case Return():
            yield from _calls_of_return(effect, on)
        case ReleaseLease(id=id, epoch=epoch, why=why):
            yield on.release(id, epoch, why)
        case Demote(request=request, epoch=epoch, delivery=delivery, why=why):
            # Published before the store reports its new queue: no agent must look for it there too early.
            yield on.publish(request)
            yield on.demote(request.metadata(), epoch, why)
            yield on.ack(delivery)
        case ForwardMessage(delivery=delivery, holder=holder):
            yield on.move(delivery, hold_queue(holder.instance))
        case RenewDelivery(delivery=delivery):
            yield on.move(delivery, hold_queue(instance))
        case DeadLetter(delivery=delivery, reason=reason):
            yield on.dead_letter(delivery, reason)


def _calls_of_return(effect: Return, on: Services[Call]) -> Iterator[Call]:
    # Only this agent reads its hold queue: a message from there moves to where all agents pull. It is there
    # before the request waits, for a blocked broker may keep it from there for long.
    moves = effect.delivery.queue != effect.home
    if moves:
        yield on.copy(effect.delivery, effect.home)
    if effect.epoch is not None:
        yield on.release(effect.id, effect.epoch, effect.why)
    yield on.ack(effect.delivery) if moves else on.requeue(effect.delivery)
