"""The port to the shared state."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import InstanceNotice
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.plan_change import PlanChange
from qlm.domain.request import RequestCard, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, QueuePlace, RequestFilter
from qlm.domain.virtual_queue import VirtualQueue


class Store(Protocol):
    """Shared state: index, groups, virtual queues, leases, output logs, results, heartbeats, the lead.

    Each method is atomic. All of it can be rebuilt from the broker and the live agents, so it is never
    the only copy of an unfinished request. Every method may raise StoreUnavailableError.
    """

    async def incarnation(self) -> int:
        """Identity of the store's content; an emptied store answers a larger number."""
        ...

    async def indexed(self) -> bool:
        """Tell whether the messages of the global queue were read into this store since it was empty.

        Until then a request that the store does not know may wait all the same.
        """
        ...

    async def mark_indexed(self, term: Term) -> None:
        """Note that the global queue was read: `indexed` holds until the store is emptied.

        Raises:
            NotLeadingError: As on `apply`.
        """
        ...

    # requests

    async def enqueue(
        self, card: RequestCard, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        """Index an accepted request as waiting, unless its id is known; add the watcher either way.

        Who has its message in hand asks for no incarnation. Whoever has published it earlier names that of
        then: it may have ended since, and a store that was emptied after that would let it wait without a
        message.

        If the class's newest group is unsealed and on a virtual queue, the request joins it at once, and
        the instance gets a QueueChanged, unless so many come before it there that polling finds it in time.
        The controller is woken in any case.

        Raises:
            StoreEmptiedError: The store is of another incarnation than that given; nothing was done.
        """
        ...

    async def record(self, id: RequestId) -> RequestRecord | None:
        """Return what is known of a request."""
        ...

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        ...

    async def queue_place(self, id: RequestId) -> QueuePlace | None:
        """Tell where a request stands in the order of its class, and in its group; None unless it waits."""
        ...

    async def cancel(self, id: RequestId, outcome: Outcome = Outcome.CANCELLED) -> RequestRecord | None:
        """End a request that nobody runs at once, or ask the live holder of one to end it.

        Nobody runs a request that waits or whose holder is dead. The outcome asked first counts; asking
        again repeats the notice. Returns the record as it stood after the call (unchanged if it had
        ended), None if unknown.
        """
        ...

    async def withdraw(self, card: RequestCard) -> bool:
        """Note as cancelled, in one step, a request that was not accepted, unless its id is known.

        Its message, should the queue have it all the same, is then dropped when met. A known one is left
        as it is: another try with the same key may have been accepted. Returns whether it was unknown.
        """
        ...

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        ...

    # leases and output

    async def lease(self, card: RequestCard, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        """Take the lease of a request whose message `holder` has in hand; index it if unknown.

        Granted if it waits, if its holder is dead (no heartbeat, or a newer session of that instance),
        or if `holder` itself holds it (a fresh epoch then fences its former one). A grant of a
        waiting request counts as one pull of `group`, if that group is given, of its class and not
        exhausted; one of a request unknown so far does not. A request whose end was asked for (see
        `cancel`) ends here instead, unless another holder lives.
        """
        ...

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry.

        Returns one result per entry, in order. An entry with an outcome releases the lease.
        """
        ...

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Note that the holder has evicted the request and keeps it. False if the epoch is not current."""
        ...

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        """Note that the holder runs a parked request again. False if the epoch is not current."""
        ...

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, in its place by arrival. False if not current.

        A request whose end was asked for (see `cancel`) ends instead. The epoch alone counts: the
        controller releases what a dead holder left behind.
        """
        ...

    async def demote(self, card: RequestCard, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, in the class that the card says, by arrival.

        One that waits already, or is unknown, waits in that class from now on, since its message is there.
        False if it has ended, or if another lease of it stands. A cancelled one ends, as on `release`.
        """
        ...

    async def reap(self, term: Term | None = None) -> Sequence[RequestId]:
        """Release the leases of holders that no longer live; their requests wait again. Returns their ids.

        Raises:
            NotLeadingError: As on `apply`.
        """
        ...

    async def reregister(self, card: RequestCard, holder: Holder, output: TokenIds) -> LeaseAnswer:
        """Restore a running request that the store has forgotten, with its whole output log.

        Granted if unknown, waiting, its holder is dead, or leased to `holder`; then the log becomes the
        longer of both.
        """
        ...

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown.

        An `offset` beyond the log answers an empty slice at its end: less than asked shows the loss.
        """
        ...

    async def watch(self, id: RequestId, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway, too."""
        ...

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return how many other watchers remain."""
        ...

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output, in batches; what a request's slices hold follows in order.

        An empty batch comes first, and after each reconnect: the subscription is live, and what was
        announced before may have been missed, so read what you watch from its last offset.
        """
        ...

    # instances

    async def heartbeat(self, status: InstanceStatus, ttl_s: float) -> None:
        """Say that an instance lives; silent for `ttl_s`, it counts as dead.

        The controller is woken when something else than the load changed.
        """
        ...

    async def leave(self, holder: Holder) -> None:
        """Say that this life of the instance is over, at once."""
        ...

    async def say_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        """Say that an instance is to run and has no place yet, and why; silent for `ttl_s`, it is forgotten.

        It is no instance for all others: this is for those who look.
        """
        ...

    async def unplaced(self) -> Mapping[InstanceId, str]:
        """Tell which instances were said to have no place, and why; those that live are left out."""
        ...

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        ...

    async def ask_drain(self, instance: InstanceId) -> bool:
        """Ask an instance to drain; False if it is not alive."""
        ...

    def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance. They are hints: polling must find the same.

        At the start and after each reconnect come a QueueChanged and all that still stands: cancels of
        what the present session holds, and a drain asked of it.
        """
        ...

    # planning

    async def view(self) -> ClusterView:
        """Read classes, groups, live instances and virtual queues at one moment."""
        ...

    async def lead(self, name: ControllerId, ttl_s: float) -> Leadership:
        """Take the lead if nobody has it, or renew it; silent for `ttl_s`, its holder has lost it.

        Returns:
            Who leads now: `name`, or another. Each taking of the lead has a larger term than all before,
            also after the store was emptied; a renewal keeps term and beginning.
        """
        ...

    async def leader(self) -> Leadership | None:
        """Tell who leads; None if nobody does."""
        ...

    async def resign(self, term: Term) -> bool:
        """Give the lead back and wake the controllers that stand by. False if the term is not current."""
        ...

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        """Apply plan changes in order, and notify each instance whose queue changed.

        Args:
            changes: What to change.
            term: That of the controller which asks; None where nobody else can plan (a simulation).

        Raises:
            InvalidValueError: A count is negative; nothing was changed.
            NotLeadingError: Nobody leads under this term now; nothing was changed.
        """
        ...

    async def keep_plan(self, data: bytes, term: Term | None = None) -> None:
        """Keep this instead of what was kept before: the latest plan, for those who look at it.

        Raises:
            NotLeadingError: As on `apply`.
        """
        ...

    async def kept_plan(self) -> bytes | None:
        """Return what was kept last; None if nothing was, or if it is long ago."""
        ...

    async def keep_signal(self, data: bytes, term: Term | None = None) -> None:
        """Keep this instead of what was kept before: the latest forecast, for admission.

        Raises:
            NotLeadingError: As on `apply`.
        """
        ...

    async def kept_signal(self) -> bytes | None:
        """Return what was kept last; None if nothing was, or if it is long ago."""
        ...

    def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints that the controller has something to do, with the reason.

        The first, and the first after each reconnect, is `subscribed`; `qlm.domain.leadership.WAKE_LEADER`
        concerns controllers that stand by, the others the one that leads.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
