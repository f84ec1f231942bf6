"""The shared state in process: nothing outlives it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

from qlm.domain.errors import StoreEmptiedError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import InstanceNotice
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.plan_change import PlanChange
from qlm.domain.ports.clock import Clock
from qlm.domain.request import RequestCard, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, QueuePlace, RequestFilter
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store.core import StoreCore
from qlm.store.effects import Effects
from qlm.store.feed import Feeds
from qlm.store.limits import StoreLimits

T = TypeVar("T")


class MemoryStore:
    """A `qlm.domain.ports.store.Store` for one process and one event loop, on a `StoreCore`.

    Each method's contract is that of the port. No method waits, but for the iterators.
    """

    def __init__(
        self, clock: Clock, limits: StoreLimits | None = None, *, core: StoreCore | None = None
    ) -> None:
        """Start empty, or from the given core, whose own limits then count."""
        self._clock = clock
        self._core = core or StoreCore(clock.now_ns(), limits)
        self._feeds = Feeds(self._core.limits.backlog_max)
        self._plan: bytes | None = None
        self._signal: bytes | None = None

    async def incarnation(self) -> int:
        """Return the time of creation, in nanoseconds since the epoch."""
        return self._core.incarnation

    async def indexed(self) -> bool:
        """Tell whether the global queue was read into this store since it was empty."""
        return self._core.indexed

    async def mark_indexed(self, term: Term) -> None:
        """Note that the global queue was read: `indexed` holds from now on."""
        self._core.check_term(term, self._clock.now_ns())
        self._core.indexed = True

    async def _settled(self, id: RequestId) -> None:
        """Wait until what the core says of a request may be shown: here at once."""

    def _check_writable(self) -> None:
        """Refuse a change that could not be kept: here none."""

    async def _commit(self, step: tuple[T, Effects]) -> T:
        """Let the effects of a step happen, then return its answer."""
        answer, effects = step
        self._feeds.announce(effects)
        return answer

    # requests

    async def enqueue(
        self, card: RequestCard, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        """Index an accepted request as waiting, unless its id is known; add the watcher either way."""
        await self._settled(card.id)
        if incarnation is not None and incarnation != self._core.incarnation:
            raise StoreEmptiedError(incarnation)
        return await self._commit(self._core.enqueue(card, watcher, self._clock.now_ns()))

    async def record(self, id: RequestId) -> RequestRecord | None:
        """Return what is known of a request."""
        await self._settled(id)
        return self._core.record(id)

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        return self._core.records(where)

    async def queue_place(self, id: RequestId) -> QueuePlace | None:
        """Tell where a request stands in the order of its class, and in its group; None unless it waits."""
        await self._settled(id)
        return self._core.queue_place(id)

    async def cancel(self, id: RequestId, outcome: Outcome = Outcome.CANCELLED) -> RequestRecord | None:
        """End a request that nobody runs at once, or ask the live holder of one to end it."""
        self._check_writable()
        await self._settled(id)
        return await self._commit(self._core.cancel(id, outcome, self._clock.now_ns()))

    async def withdraw(self, card: RequestCard) -> bool:
        """Note as cancelled, in one step, a request that was not accepted, unless its id is known."""
        self._check_writable()
        return await self._commit(self._core.withdraw(card, self._clock.now_ns()))

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        self._check_writable()
        return await self._commit(self._core.expire(now_ns, limit))

    # leases and output

    async def lease(self, card: RequestCard, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        """Take the lease of a request whose message `holder` has in hand; index it if unknown."""
        self._check_writable()
        await self._settled(card.id)
        return await self._commit(self._core.lease(card, holder, group, self._clock.now_ns()))

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry."""
        self._check_writable()
        return await self._commit(self._core.append(entries, self._clock.now_ns()))

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Note that the holder has evicted the request and keeps it."""
        return await self._commit(self._core.park(id, epoch, why, self._clock.now_ns()))

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        """Note that the holder runs a parked request again."""
        return await self._commit(self._core.resume(id, epoch, self._clock.now_ns()))

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, unless its end was asked for meanwhile."""
        self._check_writable()
        return await self._commit(self._core.release(id, epoch, why, self._clock.now_ns()))

    async def demote(self, card: RequestCard, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, in the class that the card says."""
        self._check_writable()
        return await self._commit(self._core.demote(card, epoch, why, self._clock.now_ns()))

    async def reap(self, term: Term | None = None) -> Sequence[RequestId]:
        """Release the leases of holders that no longer live; their requests wait again. Returns their ids."""
        self._check_writable()
        return await self._commit(self._core.reap(self._clock.now_ns(), term))

    async def reregister(self, card: RequestCard, holder: Holder, output: TokenIds) -> LeaseAnswer:
        """Restore a running request that the store has forgotten, with its whole output log."""
        self._check_writable()
        await self._settled(card.id)
        return await self._commit(self._core.reregister(card, holder, output, self._clock.now_ns()))

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown."""
        await self._settled(id)
        return self._core.read_output(id, offset)

    async def watch(self, id: RequestId, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway, too."""
        self._core.watch(id, watcher)

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return how many other watchers remain."""
        return self._core.unwatch(id, watcher)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output, in batches; subscribed from this call on."""
        return self._feeds.outputs(watcher)

    # instances

    async def heartbeat(self, status: InstanceStatus, ttl_s: float) -> None:
        """Say that an instance lives; silent for `ttl_s`, it counts as dead."""
        await self._commit(self._core.heartbeat(status, ttl_s, self._clock.now_ns()))

    async def leave(self, holder: Holder) -> None:
        """Say that this life of the instance is over, at once."""
        await self._commit(self._core.leave(holder))

    async def say_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        """Say that an instance is to run and has no place yet, and why; it counts for `ttl_s`."""
        self._core.say_unplaced(instance, why, ttl_s, self._clock.now_ns())

    async def unplaced(self) -> Mapping[InstanceId, str]:
        """Tell which instances were said to have no place, and why; those that live are left out."""
        return self._core.unplaced(self._clock.now_ns())

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        return self._core.virtual_queue(instance)

    async def ask_drain(self, instance: InstanceId) -> bool:
        """Ask an instance to drain; False if it is not alive."""
        return await self._commit(self._core.ask_drain(instance, self._clock.now_ns()))

    def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance; subscribed from this call on."""
        return self._feeds.notices(instance, lambda: self._core.standing_notices(instance))

    # planning

    async def view(self) -> ClusterView:
        """Read classes, groups, live instances and virtual queues at one moment."""
        return self._core.view(self._clock.now_ns())

    async def lead(self, name: ControllerId, ttl_s: float) -> Leadership:
        """Take the lead if nobody has it, or renew it; tell who leads."""
        return await self._commit(self._core.lead(name, ttl_s, self._clock.now_ns()))

    async def leader(self) -> Leadership | None:
        """Tell who leads; None if nobody does."""
        return self._core.leader(self._clock.now_ns())

    async def resign(self, term: Term) -> bool:
        """Give the lead back and wake the controllers that stand by; False if the term is not current."""
        return await self._commit(self._core.resign(term, self._clock.now_ns()))

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        """Apply plan changes in order, and notify each instance whose queue changed."""
        await self._commit(self._core.apply(changes, self._clock.now_ns(), term))

    async def keep_plan(self, data: bytes, term: Term | None = None) -> None:
        """Keep this instead of what was kept before."""
        self._core.check_term(term, self._clock.now_ns())
        self._plan = data

    async def kept_plan(self) -> bytes | None:
        """Return what was kept last."""
        return self._plan

    async def keep_signal(self, data: bytes, term: Term | None = None) -> None:
        """Keep this instead of what was kept before."""
        self._core.check_term(term, self._clock.now_ns())
        self._signal = data

    async def kept_signal(self) -> bytes | None:
        """Return what was kept last."""
        return self._signal

    def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints that the controller has something to do; subscribed from this call on."""
        return self._feeds.wakeups()

    async def close(self) -> None:
        """End all iterators."""
        self._feeds.close()
