"""Shared state in process memory: nothing survives the process."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

from qlm.domain.errors import StoreEmptiedError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, RequestId, SessionId, TokenIds
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Epoch, Holder, InstanceHeld
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import InstanceNotice
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.plan_change import PlanChange
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, RequestFilter, RequestPosition
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store.core import instances, leadership, leases, outbox, output_log, plans, requests
from qlm.store.core.effects import Effects
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import State
from qlm.store.embedded.api_keys import MemoryApiKeys
from qlm.store.embedded.feed import Feeds
from qlm.store.embedded.media import MemoryMedia

T = TypeVar("T")


class MemoryStore(MemoryApiKeys, MemoryMedia, Store):
    """Store for one process and one event loop; only its iterators wait."""

    def __init__(
        self, clock: Clock, limits: StoreLimits | None = None, *, state: State | None = None
    ) -> None:
        """Start empty, or from the given state, whose own limits then count."""
        super().__init__()
        self._clock = clock
        self._state = state or State(clock.now_ns(), limits)
        self._feeds = Feeds(self._state.limits.backlog_max)
        self._published: dict[PublishedKind, bytes] = {}

    async def _settled(self, id: RequestId) -> None:
        """Wait until a request may be read: here not at all."""

    def _is_settled(self, id: RequestId) -> bool:
        """Return True if a request may be read: here always."""
        return True

    def _check_writable(self) -> None:
        """Reject a change that could not be stored: here none."""

    def _check_term(self, term: Term | None) -> None:
        leadership.check_term(self._state, term, self._clock.now_ns())

    async def _commit(self, step: tuple[T, Effects]) -> T:
        """Announce the effects of a step, then return its answer."""
        answer, effects = step
        self._feeds.announce(effects)
        self._drop_ended(effects.ended)
        return answer

    # requests

    async def incarnation(self) -> int:
        return self._state.incarnation

    async def probe(self) -> None:
        self._check_writable()

    async def warnings(self) -> Sequence[str]:
        return ()

    async def indexed(self) -> bool:
        return self._state.indexed

    async def mark_indexed(self, term: Term) -> None:
        self._check_term(term)
        self._state.indexed = True

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        await self._settled(metadata.id)
        if incarnation is not None and incarnation != self._state.incarnation:
            raise StoreEmptiedError(incarnation)
        return await self._commit(requests.enqueue(self._state, metadata, watcher, self._clock.now_ns()))

    async def record(self, id: RequestId) -> RequestRecord | None:
        await self._settled(id)
        return requests.record(self._state, id)

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        return requests.records(self._state, where)

    async def queue_position(self, id: RequestId) -> RequestPosition | None:
        await self._settled(id)
        return requests.queue_position(self._state, id)

    async def cancel(
        self, id: RequestId, outcome: Outcome = Outcome.CANCELLED, why: str = ""
    ) -> RequestRecord | None:
        self._check_writable()
        await self._settled(id)
        return await self._commit(requests.cancel(self._state, id, outcome, self._clock.now_ns(), why))

    async def withdraw(self, metadata: RequestMetadata) -> bool:
        self._check_writable()
        return await self._commit(requests.withdraw(self._state, metadata, self._clock.now_ns()))

    async def erase(self, metadata: RequestMetadata) -> bool:
        self._check_writable()
        await self._settled(metadata.id)
        return await self._commit(output_log.erase(self._state, metadata, self._clock.now_ns()))

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        self._check_writable()
        return await self._commit(requests.expire(self._state, now_ns, limit))

    async def waiting(self, cls: RequestClass) -> Sequence[RequestId]:
        return requests.waiting(self._state, cls)

    async def end_waiting(
        self, ids: Sequence[RequestId], outcome: Outcome, detail: str
    ) -> Sequence[RequestId]:
        self._check_writable()
        for id in ids:
            await self._settled(id)
        now_ns = self._clock.now_ns()
        return await self._commit(requests.end_waiting(self._state, ids, outcome, detail, now_ns))

    # outbox

    async def add_end(self, event: EndEvent) -> None:
        self._check_writable()
        effects = Effects()
        outbox.add(self._state, event, self._clock.now_ns(), effects)
        await self._commit((None, effects))

    async def claim_ends(self, limit: int, claim_s: float) -> Sequence[EndEvent]:
        now_ns = self._clock.now_ns()
        until_ns = now_ns + round(claim_s * 1e9)
        return outbox.claim(
            self._state, limit, until_ns, now_ns, lambda subject: self._is_settled(RequestId(subject))
        )

    async def settle_end(self, event: EndEvent, again_ns: int | None) -> bool:
        self._check_writable()
        return await self._commit(outbox.settle(self._state, event, again_ns))

    async def outbox_state(self) -> OutboxState:
        return outbox.waiting(self._state)

    # leases and output

    async def lease(self, metadata: RequestMetadata, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        self._check_writable()
        await self._settled(metadata.id)
        return await self._commit(leases.lease(self._state, metadata, holder, group, self._clock.now_ns()))

    def lease_now(
        self, metadata: RequestMetadata, holder: Holder, group: GroupId | None
    ) -> LeaseAnswer | None:
        self._check_writable()
        row = self._state.requests.get(metadata.id)
        if not self._is_settled(metadata.id) or (row is not None and row.cancel is not None):
            return None  # what ends here is announced once it is written
        answer, effects = leases.lease(self._state, metadata, holder, group, self._clock.now_ns())
        self._feeds.announce(effects)
        return answer

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        self._check_writable()
        return await self._commit(output_log.append(self._state, entries, self._clock.now_ns()))

    def append_now(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult] | None:
        self._check_writable()
        if any(entry.outcome is not None for entry in entries):
            return None
        answer, effects = output_log.append(self._state, entries, self._clock.now_ns())
        self._feeds.announce(effects)
        return answer

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        return await self._commit(leases.park(self._state, id, epoch, why, self._clock.now_ns()))

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        return await self._commit(leases.resume(self._state, id, epoch, self._clock.now_ns()))

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        self._check_writable()
        return await self._commit(leases.release(self._state, id, epoch, why, self._clock.now_ns()))

    async def demote(self, metadata: RequestMetadata, epoch: Epoch, why: str) -> bool:
        self._check_writable()
        return await self._commit(leases.demote(self._state, metadata, epoch, why, self._clock.now_ns()))

    async def expire_leases(self, term: Term | None = None) -> Sequence[RequestId]:
        self._check_writable()
        self._check_term(term)
        return await self._commit(leases.expire_leases(self._state, self._clock.now_ns()))

    async def reregister(self, metadata: RequestMetadata, holder: Holder, output: TokenIds) -> LeaseAnswer:
        self._check_writable()
        await self._settled(metadata.id)
        return await self._commit(
            leases.reregister(self._state, metadata, holder, output, self._clock.now_ns())
        )

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        await self._settled(id)
        return output_log.read_output(self._state, id, offset)

    async def watch(self, metadata: RequestMetadata, watcher: GatewayId) -> None:
        output_log.watch(self._state, metadata, watcher)

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        return output_log.unwatch(self._state, id, watcher)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        return self._feeds.outputs(watcher)

    # instances

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        now_ns = self._clock.now_ns()
        return await self._commit(instances.heartbeat(self._state, status, ttl_s, now_ns, replaces))

    async def leave(self, holder: Holder) -> None:
        await self._commit(instances.leave(self._state, holder))

    async def report_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        instances.report_unplaced(self._state, instance, why, ttl_s, self._clock.now_ns())

    async def report_refused_agent(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        instances.report_refused_agent(self._state, instance, why, ttl_s, self._clock.now_ns())

    async def refused_agents(self) -> Mapping[InstanceId, str]:
        return instances.refused_agents(self._state, self._clock.now_ns())

    async def unplaced(self) -> Mapping[InstanceId, str]:
        return instances.unplaced(self._state, self._clock.now_ns())

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        return plans.virtual_queue(self._state, instance)

    async def ask_drain(self, instance: InstanceId) -> bool:
        return await self._commit(instances.ask_drain(self._state, instance, self._clock.now_ns()))

    def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        return self._feeds.notices(instance, lambda: instances.standing_notices(self._state, instance))

    # planning

    async def view(self) -> ClusterView:
        return plans.view(self._state, self._clock.now_ns())

    async def acquire_leadership(self, name: ControllerId, ttl_s: float) -> Leadership:
        return await self._commit(
            leadership.acquire_leadership(self._state, name, ttl_s, self._clock.now_ns())
        )

    async def leader(self) -> Leadership | None:
        return leadership.leader(self._state, self._clock.now_ns())

    async def resign(self, term: Term) -> bool:
        return await self._commit(leadership.resign(self._state, term, self._clock.now_ns()))

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        plans.check_changes(changes)
        self._check_term(term)
        await self._commit(plans.apply(self._state, changes, self._clock.now_ns()))

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        self._check_term(term)
        self._published[kind] = data

    async def published(self, kind: PublishedKind) -> bytes | None:
        return self._published.get(kind)

    def wakeups(self) -> AsyncIterator[str]:
        return self._feeds.wakeups()

    async def close(self) -> None:
        self._feeds.close()
