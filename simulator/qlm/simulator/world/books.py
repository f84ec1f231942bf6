"""What an agent writes down one after the other in virtual time, as `agents.bookkeeper` does in real time."""

from collections import deque
from collections.abc import Callable

from qlm.agents.bookkeeper import RETRY_S
from qlm.broker.topology import DEAD, hold_queue
from qlm.domain.actions import (
    Ack,
    Action,
    DeadLetter,
    Demote,
    HandOver,
    NoteParked,
    NoteResumed,
    Renew,
    Return,
)
from qlm.domain.ids import InstanceId, RequestId
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import Rank

_STORE_ONLY = (NoteParked, NoteResumed)
_WITH_STORE = (*_STORE_ONLY, Return, Demote)
EVICTED = "evicted"
"""How the reasons of evictions begin."""


class Books:
    """Keeps the order of acknowledgements, returns, hand-overs and notes; waits out outages."""

    def __init__(
        self, parts: SharedParts, instance: InstanceId, entity: int, evicted: Callable[[RequestId], None]
    ) -> None:
        self.dead = False
        self._parts = parts
        self._instance = instance
        self._entity = entity
        self._evicted = evicted
        self._waiting: deque[Action] = deque()

    def put(self, action: Action) -> None:
        """Write this down after everything put before."""
        self._waiting.append(action)
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        parts, action = self._parts, self._waiting[0]
        lasts_ns = parts.store_ns if isinstance(action, _STORE_ONLY) else parts.broker_ns
        if isinstance(action, Demote) or (isinstance(action, Return) and action.epoch is not None):
            lasts_ns += parts.store_ns
        parts.timeline.at(parts.timeline.now_ns + lasts_ns, Rank.BROKER, self._entity, self._done)

    def _done(self, _: object) -> None:
        if self.dead:
            return
        action = self._waiting[0]
        if self._away(action):
            retry_ns = self._parts.timeline.now_ns + round(RETRY_S * 1e9)
            self._parts.timeline.at(retry_ns, Rank.BROKER, self._entity, self._done)
            return
        self._waiting.popleft()
        self._write(action)
        if self._waiting:
            self._begin()

    def _away(self, action: Action) -> bool:
        """Whether a part that the action needs cannot be reached now."""
        parts = self._parts
        return (parts.store_down and isinstance(action, _WITH_STORE)) or (
            parts.broker_down and not isinstance(action, _STORE_ONLY)
        )

    def _write(self, action: Action) -> None:  # noqa: C901 - one flat table of actions
        parts, now_ns = self._parts, self._parts.timeline.now_ns
        match action:
            case Ack(delivery=delivery):
                parts.queue.ack(delivery, self._instance)
            case NoteParked(id=id, epoch=epoch, why=why):
                self._evicted(id)
                parts.commit(parts.store.park(id, epoch, why, now_ns))
            case NoteResumed(id=id, epoch=epoch):
                parts.commit(parts.store.resume(id, epoch, now_ns))
            case Return(id=id, epoch=epoch, delivery=delivery, home=home, why=why):
                if why.startswith(EVICTED):
                    self._evicted(id)
                if epoch is not None:
                    parts.commit(parts.store.release(id, epoch, why, now_ns))
                if delivery.queue == home:
                    parts.queue.requeue(delivery, self._instance)
                else:
                    parts.queue.move(delivery, self._instance, home)
            case Demote(request=request, epoch=epoch, delivery=delivery, why=why):
                parts.queue.publish(request.cls.queue, request)
                parts.commit(parts.store.demote(request, epoch, why, now_ns))
                parts.queue.ack(delivery, self._instance)
            case HandOver(delivery=delivery, holder=holder):
                parts.queue.move(delivery, self._instance, hold_queue(holder.instance))
            case Renew(delivery=delivery):
                parts.queue.move(delivery, self._instance, hold_queue(self._instance))
            case DeadLetter(delivery=delivery):
                parts.queue.move(delivery, self._instance, DEAD)
