"""Pulls and leases of an agent: at once where broker and store can, else in a task each.

Of the pulls in one turn of the event loop only the first is done at once. A pull that brings only cancelled
requests causes the next, and a queue of thousands of them would stall the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from qlm.agents.core.events import LeaseAnswered, Pulled
from qlm.broker import codec
from qlm.domain.actions import AcquireLease, DeadLetter, Pull, PulledMessage, RestoreRequest
from qlm.domain.errors import UndecodableDataError
from qlm.domain.ids import GroupId, InstanceId, RequestId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.agents")


class Acquiring:
    """Carries out the pulls and lease requests of one agent.

    Args:
        instance: Its instance.
        holder: The agent as a lease holder.
        broker: The global queue.
        store: The shared state.
        faults: Failures of the process.
        post: Receives the results as events, of what is done at once before the method returns.
        spawn: Starts a task that ends with the agent.
        dead_letter: Receives messages that cannot be decoded.
    """

    def __init__(
        self,
        instance: InstanceId,
        holder: Holder,
        broker: Broker,
        store: AgentStore,
        faults: FaultLog,
        post: Callable[[Pulled | LeaseAnswered], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        dead_letter: Callable[[DeadLetter], None],
    ) -> None:
        self._instance = instance
        self._holder = holder
        self._broker = broker
        self._store = store
        self._faults = faults
        self._post = post
        self._spawn = spawn
        self._dead_letter = dead_letter
        self._pulled = False

    def pull(self, action: Pull, *, valid: bool) -> None:
        """Pull, or begin to; nothing comes without a `valid` lease of the instance."""
        deliveries: Sequence[Delivery] | None = ()
        try:
            if valid:
                deliveries = self._get_now(action)
        except Exception as error:
            self._faults.note(log, error, "%s: pull failed", self._instance)
        if deliveries is None:
            self._spawn(self._pull(action))
        else:
            self.received(action.group, action.limit, deliveries)

    def _get_now(self, action: Pull) -> Sequence[Delivery] | None:
        """Return what can be pulled at once, or None if it needs a task."""
        if self._pulled:
            return None
        deliveries = self._broker.get_now(action.cls.queue, action.limit)
        if deliveries is not None:
            self._pulled = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        return deliveries

    def _end_turn(self) -> None:
        self._pulled = False

    async def _pull(self, action: Pull) -> None:
        deliveries: Sequence[Delivery] = ()
        try:
            deliveries = await self._broker.get(action.cls.queue, action.limit)
        except Exception as error:
            self._faults.note(log, error, "%s: pull failed", self._instance)
        self.received(action.group, action.limit, deliveries)

    def received(self, group: GroupId | None, limit: int, deliveries: Sequence[Delivery]) -> None:
        """Decode messages and pass them to the agent; `group` is None for those of its hold queue."""
        if group is None and not deliveries:
            return
        messages = []
        for delivery in deliveries:
            try:
                messages.append(PulledMessage(delivery=delivery, request=codec.decode_request(delivery.body)))
            except UndecodableDataError as error:
                self._dead_letter(DeadLetter(delivery=delivery, reason=str(error)))
        self._post(Pulled(group=group, limit=limit, messages=tuple(messages)))

    def lease(self, action: AcquireLease) -> None:
        """Acquire a lease, or begin to."""
        metadata = action.metadata
        try:
            answer = self._store.lease_now(metadata, self._holder, action.group)
        except Exception as error:
            self._failed(metadata.id, error)
            return
        if answer is None:
            leasing = self._store.lease(metadata, self._holder, action.group)
            self._spawn(self._answered(metadata.id, leasing))
        else:
            self._post(LeaseAnswered(id=metadata.id, answer=answer))

    def restore(self, action: RestoreRequest) -> None:
        """Begin to register a request that the store has lost."""
        restoring = self._store.reregister(action.metadata, self._holder, action.output)
        self._spawn(self._answered(action.metadata.id, restoring))

    async def _answered(self, id: RequestId, call: Coroutine[Any, Any, LeaseAnswer]) -> None:
        try:
            answer = await call
        except Exception as error:
            self._failed(id, error)
        else:
            self._post(LeaseAnswered(id=id, answer=answer))

    def _failed(self, id: RequestId, error: Exception) -> None:
        extra = {"request_id": id}
        self._faults.note(log, error, "%s: no lease for %s", self._instance, id, extra=extra)
        self._post(LeaseAnswered(id=id, answer=None))
