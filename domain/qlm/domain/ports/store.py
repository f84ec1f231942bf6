"""Port to the shared state, by role: what gateways, agents and controllers call."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Protocol

from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GatewayId, InstanceId, RequestId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.plan_change import PlanChange
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.ports.api_keys import ApiKeys
from qlm.domain.ports.media import MediaStore
from qlm.domain.ports.outbox import Outbox
from qlm.domain.ports.published import PublishedState, Publisher
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.view import ClusterView, Enqueued, RequestFilter, RequestPosition

WAKE_JOINED: Final = "joined"
"""A new request waits, and its group is in a virtual queue: no plan has to come before it is served."""


class RequestIndex(PublishedState, Protocol):
    """Index of requests and view of the cluster, for gateways and controllers.

    Every method may raise StoreUnavailableError.
    """

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        """Index an accepted request as waiting, unless its id is known; add the watcher in either case.

        The record that is returned may be that of another request with the same id (`is_same_request`), which
        then has not been changed.

        If the newest group of the class is unsealed and on a virtual queue, the request joins it at once.
        The instance gets a QueueChanged, unless the request is so far back that polling finds it in time.
        The controller is woken in any case, but not at once if it joins a group (`WAKE_JOINED`).

        Args:
            incarnation: Incarnation in which the message was published; None for a caller that has pulled
                the message. Otherwise a store that was emptied after the request had ended would index a
                request without a message.

        Raises:
            StoreEmptiedError: The store is of another incarnation; nothing was done.
        """
        ...

    async def record(self, id: RequestId) -> RequestRecord | None:
        """Return the record of a request; None if unknown."""
        ...

    async def indexed(self) -> bool:
        """Return True if the messages of the global queue were indexed since this store was empty.

        Until then a request may wait that the store does not know.
        """
        ...

    async def view(self) -> ClusterView:
        """Return an atomic snapshot of classes, groups, live instances and virtual queues."""
        ...

    async def warnings(self) -> Sequence[str]:
        """Return what breaks promises of this port, or soon will, a sentence each.

        These are settings of the server, lost data, and memory that is nearly used up.
        """
        ...


class GatewayStore(RequestIndex, ApiKeys, Outbox, MediaStore, Protocol):
    """Operations of a gateway: accept, cancel and look up requests, receive output, know clients, tell ends.

    Every method may raise StoreUnavailableError.
    """

    async def incarnation(self) -> int:
        """Return the identity of the store's content; an emptied store returns a larger number."""
        ...

    async def probe(self) -> None:
        """Write something without a meaning, as every other change is written.

        Raises:
            StoreUnavailableError: The store cannot be reached, or cannot be written.
        """
        ...

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        ...

    async def queue_position(self, id: RequestId) -> RequestPosition | None:
        """Return the position of a waiting request in its class and in its group; None unless it waits."""
        ...

    async def cancel(
        self, id: RequestId, outcome: Outcome = Outcome.CANCELLED, why: str = ""
    ) -> RequestRecord | None:
        """End a request at once if it has no live holder; otherwise ask the holder to end it.

        The outcome of the first call counts, with its reason; another call repeats the notice. Returns the
        record after the call (unchanged if the request had ended); None if unknown.

        Args:
            why: Reason of an outcome without an answer; the request ends with it as its detail.
        """
        ...

    async def withdraw(self, metadata: RequestMetadata) -> bool:
        """Record a request that was not accepted as cancelled, atomically, unless its id is known.

        Its message, if the queue has it nevertheless, is dropped when it is pulled. A known request stays as
        it is: another try with the same key may have been accepted. Returns True if it was unknown.
        """
        ...

    async def erase(self, metadata: RequestMetadata) -> bool:
        """Erase the log and all texts of an ended request, atomically; False unless such a request has ended.

        Its record stays until it would be dropped, `erased`: its message, its id and its statistics still
        count. `read_output` returns an empty log, and OUTPUT_LOST for an answer.

        Args:
            metadata: That of its record.
        """
        ...

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown.

        An `offset` beyond the log returns an empty slice at the end of the log, which shows the loss. The
        slice has the fingerprint of the request: a reader may expect another request under this id.

        If tokens that were recorded are missing, the slice is empty, and what ended as an answer has the
        outcome OUTPUT_LOST, here and in its record. A request that runs gets its log again by `reregister`.
        """
        ...

    async def watch(self, metadata: RequestMetadata, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway also, unless another one has its id.

        A request that waits, and is missing in the order of its class, is put there again.
        """
        ...

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return the number of remaining watchers."""
        ...

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output, in batches; the slices of one request come in order.

        An empty batch comes first, and after each reconnect: the subscription is live, and earlier
        announcements may be lost, so read each watched log from its last offset.
        """
        ...

    async def ask_drain(self, instance: InstanceId) -> bool:
        """Ask an instance to drain; False if it is not alive."""
        ...

    async def unplaced(self) -> Mapping[InstanceId, str]:
        """Return instances without a place in the cluster, each with the reason; live ones are left out."""
        ...

    async def refused_agents(self) -> Mapping[InstanceId, str]:
        """Return the instances for which a second agent was refused, each with both agents in words."""
        ...

    async def leader(self) -> Leadership | None:
        """Return the leadership that stands; None if there is none."""
        ...


class ControllerStore(RequestIndex, Publisher, Protocol):
    """Operations of a controller: leadership, plans, and repairs after failures.

    Writes take the term of their controller; None where only one can plan (a simulation).
    Every method may raise StoreUnavailableError.
    """

    async def mark_indexed(self, term: Term) -> None:
        """Record that the global queue was indexed; `indexed` holds until the store is emptied.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        ...

    async def waiting(self, cls: RequestClass) -> Sequence[RequestId]:
        """List the waiting requests of a class, oldest arrival first.

        What begins or ends to wait meanwhile may be in the list or not.
        """
        ...

    async def end_waiting(
        self, ids: Sequence[RequestId], outcome: Outcome, detail: str
    ) -> Sequence[RequestId]:
        """End those of these requests that wait; return their ids."""
        ...

    async def expire_leases(self, term: Term | None = None) -> Sequence[RequestId]:
        """Release the leases of dead holders; return the ids of the requests, which wait again.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    async def acquire_leadership(self, name: ControllerId, ttl_s: float) -> Leadership:
        """Acquire leadership if it is free, or renew it; it lapses `ttl_s` after the last renewal.

        Returns:
            The leadership that stands, of `name` or of another. A term is larger than all before it, also
            after the store was emptied; a renewal keeps the term and its beginning.
        """
        ...

    async def resign(self, term: Term) -> bool:
        """End the leadership and wake the standby controllers. False if the term is not current."""
        ...

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        """Apply plan changes in order, and notify each instance whose queue changed.

        Raises:
            InvalidValueError: A count is negative; nothing was changed.
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints that the controller has something to do, with the reason.

        The first, and the first after each reconnect, is `subscribed`. `qlm.domain.leadership.WAKE_LEADER`
        concerns standby controllers, all others the leader; of `WAKE_JOINED` there may be thousands a second.
        """
        ...


class Store(GatewayStore, AgentStore, ControllerStore, Protocol):
    """Shared state: request index, groups, virtual queues, leases, output logs, heartbeats, leadership.

    Each method is atomic. The content can be rebuilt from the broker and the live agents, so the store never
    has the only copy of an unfinished request. Every method may raise StoreUnavailableError.
    """

    async def report_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        """Report that an instance shall run but has no place in the cluster; forgotten after `ttl_s`.

        Views do not contain it: the report is for operators.
        """
        ...

    async def close(self) -> None:
        """Close connections, and end all iterators."""
        ...
