"""Side effects of a simulated agent, executed one after the other in virtual time."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from qlm.agents.core.side_effects import Services, SideEffect, calls
from qlm.agents.shell.side_effects import RETRY_S
from qlm.broker.topology import DEAD
from qlm.domain.actions import Demote, ReportParked, Return
from qlm.domain.ids import InstanceId, RequestId
from qlm.simulator.cluster.event_queue import Rank
from qlm.simulator.cluster.services import SharedServices
from qlm.store.core import leases
from qlm.store.core.effects import Effects


class _Call(NamedTuple):
    """A prepared call to the store or the broker."""

    to_store: bool
    do: Callable[[], object]


class SideEffects:
    """Queue of side effects; each takes a round trip to every service that it uses, and waits out outages."""

    def __init__(
        self,
        services: SharedServices,
        instance: InstanceId,
        entity: int,
        on_evicted: Callable[[RequestId], None],
    ) -> None:
        self.dead = False
        self._shared = services
        self._instance = instance
        self._entity = entity
        self._on_evicted = on_evicted
        self._waiting: deque[tuple[SideEffect, tuple[_Call, ...]]] = deque()
        broker = services.broker
        self._services = Services(
            park=partial(self._store, leases.park),
            resume=partial(self._store, leases.resume),
            release=partial(self._store, leases.release),
            demote=partial(self._store, leases.demote),
            ack=lambda delivery: _Call(False, lambda: broker.ack(delivery, instance)),
            requeue=lambda delivery: _Call(False, lambda: broker.requeue(delivery, instance)),
            copy=lambda delivery, queue: _Call(False, lambda: broker.copy(delivery, instance, queue)),
            move=lambda delivery, queue: _Call(False, lambda: broker.move(delivery, instance, queue)),
            publish=lambda request: _Call(False, lambda: broker.publish(request.cls.queue, request)),
            dead_letter=lambda delivery, _: _Call(False, lambda: broker.move(delivery, instance, DEAD)),
        )

    def put(self, effect: SideEffect) -> None:
        """Execute an effect after all earlier ones."""
        self._waiting.append((effect, tuple(calls(effect, self._instance, self._services))))
        if len(self._waiting) == 1:
            self._begin()

    def _store(self, operation: Callable[..., tuple[object, Effects]], *arguments: object) -> _Call:
        shared = self._shared
        return _Call(
            True, lambda: shared.commit(operation(shared.state, *arguments, shared.event_queue.now_ns))
        )

    def _begin(self) -> None:
        shared, (_, calls) = self._shared, self._waiting[0]
        uses = {call.to_store for call in calls}
        self._after(shared.store_ns * (True in uses) + shared.broker_ns * (False in uses))

    def _execute(self, _: object) -> None:
        if self.dead:
            return
        shared, (effect, calls) = self._shared, self._waiting[0]
        if any(shared.store_down if call.to_store else shared.broker_down for call in calls):
            self._after(round(RETRY_S * 1e9))
            return
        self._waiting.popleft()
        if isinstance(effect, ReportParked) or (isinstance(effect, Return) and effect.evicted):
            self._on_evicted(effect.id)
        elif isinstance(effect, Demote) and effect.evicted:
            self._on_evicted(effect.request.id)
        for call in calls:
            call.do()
        if self._waiting:
            self._begin()

    def _after(self, lasts_ns: int) -> None:
        queue = self._shared.event_queue
        queue.schedule(queue.now_ns + lasts_ns, Rank.BROKER, self._entity, self._execute)
