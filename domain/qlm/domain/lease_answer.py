"""What the store answers when a lease is asked for."""

from dataclasses import dataclass

from qlm.domain.ids import TokenIds
from qlm.domain.lease import Holder, Lease
from qlm.domain.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lease is ours.

    Attributes:
        lease: The lease, with a fresh epoch.
        output: Token ids already in the log, to be resumed from.
    """

    lease: Lease
    output: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Another live holder runs the request.

    Attributes:
        holder: Who.
    """

    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The request has ended; its message can be dropped.

    Attributes:
        outcome: How it ended.
    """

    outcome: Outcome


LeaseAnswer = Granted | Held | Over
