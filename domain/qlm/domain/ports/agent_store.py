"""Port to the shared state for agents."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import GroupId, InstanceId, RequestId, SessionId, TokenIds
from qlm.domain.lease import Epoch, Holder, InstanceHeld
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.media import MediaReader
from qlm.domain.request import RequestMetadata
from qlm.domain.virtual_queue import VirtualQueue


class AgentStore(MediaReader, Protocol):
    """Operations of an agent: leases, output logs, heartbeats, and its virtual queue.

    Every method may raise StoreUnavailableError.
    """

    async def lease(self, metadata: RequestMetadata, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        """Acquire the lease of a request whose message `holder` has pulled; index the request if unknown.

        Granted if the request waits, if its holder is dead (no heartbeat, or a newer session of that
        instance), or if `holder` has the lease already (a new epoch then fences the former one). A cancelled
        request ends here instead, unless another holder lives.

        `IdTaken` if another request has the id (`is_same_request`).

        The grant of a waiting request counts as one pull of `group`, if given, of the same class and not
        exhausted; the grant of an unknown request does not count.
        """
        ...

    def lease_now(
        self, metadata: RequestMetadata, holder: Holder, group: GroupId | None
    ) -> LeaseAnswer | None:
        """Do the same as `lease` before returning, where nothing has to be written first.

        Returns:
            None if nothing was done: call `lease`.
        """
        return None

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry.

        Returns one result per entry, in order. An entry with an outcome releases the lease.
        """
        ...

    def append_now(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult] | None:
        """Do the same as `append` before returning, where that is a matter of microseconds.

        Returns:
            None if nothing was done: call `append`. A store that is a server cannot, none can end a request
            so, and a disk may be slow at present.
        """
        ...

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Record that the holder has preempted the request and keeps its lease. False if not current."""
        ...

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        """Record that the holder runs a preempted request again. False if the epoch is not current."""
        ...

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Release the lease: the request waits again, in its place by arrival. False if not current.

        A cancelled request ends instead. The epoch alone counts: the holder need not be alive.
        """
        ...

    async def demote(self, metadata: RequestMetadata, epoch: Epoch, why: str) -> bool:
        """Release the lease and let the request wait in the class of `metadata`, by arrival.

        A request that waits already, or is unknown, waits in that class from now on, since its message is
        there. False if it has ended, if another lease of it is current, or if another request has the id. A
        cancelled one ends instead.
        """
        ...

    async def reregister(self, metadata: RequestMetadata, holder: Holder, output: TokenIds) -> LeaseAnswer:
        """Restore a running request that the store has lost, with its whole output log.

        Granted if the request is unknown, waits, has a dead holder, or is leased to `holder`. The log becomes
        the longer of both, but stays as it is if `output` has other tokens: another agent has gone on.
        `IdTaken` if another request has the id.
        """
        ...

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        """Acquire or renew the lease of an instance; without another heartbeat within `ttl_s`, it lapses.

        An instance whose lease has lapsed counts as dead. The controller is woken if anything but the load
        changed.

        Args:
            status: The status to report.
            ttl_s: Validity.
            replaces: Session that has ended, whose lease this one takes over.

        Returns:
            None, or the lease of another session: nothing was changed then.
        """
        ...

    async def report_refused_agent(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        """Report that another agent has the lease of an instance; for operators, forgotten after `ttl_s`."""
        ...

    async def leave(self, holder: Holder) -> None:
        """Deregister this session of the instance at once."""
        ...

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        ...

    def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance. They are hints: polling must find the same.

        At the start and after each reconnect come a QueueChanged and all standing requests to the session:
        cancellations of what it holds, and a drain. So do the leases that it holds: a server may have come
        back with an earlier state, in which requests run that have ended.
        """
        ...
