"""Leases: the exclusive right to run a request, with its epochs, or to serve an instance."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.values import value


@value(kw_only=False, order=True)
class Epoch:
    """The fencing number of a lease; later ones win.

    Attributes:
        incarnation: Identity of the store's row of the request; a store that lost the row gives another one.
        n: Number of the request's lease in this incarnation, from 1.
    """

    incarnation: int
    n: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Agent process that holds leases, by instance and session."""

    instance: InstanceId
    session: SessionId


@value(kw_only=False)
class Lease:
    """Exclusive right of one holder to run one request; writes under an older epoch are refused."""

    holder: Holder
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """Operating-system process in which a session of an agent runs.

    Attributes:
        host: Name of its machine or container.
        pid: Its process id.
        start_ticks: Its start, in clock ticks since the boot: process ids are reused.
        boot_id: The boot of its machine; empty if unknown.
        pid_namespace: The namespace of its process id; a container has its own.
        began_ns: Beginning of the session.
    """

    host: str
    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str
    began_ns: int

    def sees(self, other: "AgentProcess") -> bool:
        """Return True if the process id of the other one means the same process here."""
        # The host, too: clones of a virtual machine have one boot id.
        mine = (self.boot_id, self.pid_namespace, self.host)
        return self.boot_id != "" and mine == (other.boot_id, other.pid_namespace, other.host)

    def runs(self, other: "AgentProcess") -> bool:
        """Return True if a session of the other process is an earlier one of this process."""
        mine, others = (self.pid, self.start_ticks), (other.pid, other.start_ticks)
        return self.sees(other) and mine == others


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceHeld:
    """Refusal of a heartbeat: the lease of the instance belongs to another session.

    Attributes:
        session: The session that has it.
        process: Its process; None from agents of earlier versions.
        lapses_in_s: Time until the lease lapses, unless that session renews it.
    """

    session: SessionId
    process: AgentProcess | None
    lapses_in_s: float

    def __str__(self) -> str:
        if self.process is None:
            return f"session {self.session} of an earlier version"
        began = datetime.fromtimestamp(self.process.began_ns // 10**9, UTC)
        return (
            f"process {self.process.pid} on {self.process.host}, session {self.session}, "
            f"since {began:%Y-%m-%d %H:%M:%S} UTC"
        )


class Claim(Enum):
    """Next step of an agent whose instance is leased to another session."""

    TAKE_OVER = auto()
    """Replace that session: it has ended."""
    WAIT = auto()
    """Try again: its lease may lapse."""
    GIVE_UP = auto()
    """It has renewed its lease: it lives."""


def claim(refusal: InstanceHeld, this: AgentProcess | None, *, ended: bool, overdue: bool) -> Claim:
    """Decide about an instance that is leased to another session.

    Args:
        refusal: The answer to the last heartbeat.
        this: The process of the agent that wants the instance; None if unknown.
        ended: No process here is the one that has the instance; counts only if `this` would see it.
        overdue: The lease that was found at first would have lapsed by now.
    """
    holder = refusal.process
    # An agent of this very process has ended, too: it runs one session of an instance after the other.
    if holder and this and this.sees(holder) and (ended or this.runs(holder)):
        return Claim.TAKE_OVER
    return Claim.GIVE_UP if overdue else Claim.WAIT
