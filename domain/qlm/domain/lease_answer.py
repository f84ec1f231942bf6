"""What the store answers when a lease is asked for."""

from qlm.domain.ids import TokenIds
from qlm.domain.lease import Holder, Lease
from qlm.domain.outcome import Outcome
from qlm.domain.values import value


@value
class Granted:
    """The lease is ours.

    Attributes:
        lease: The lease, with a fresh epoch.
        output: Token ids already in the log, to be resumed from.
    """

    lease: Lease
    output: TokenIds


@value
class Held:
    """Another live holder runs the request.

    Attributes:
        holder: Who.
    """

    holder: Holder


@value
class Over:
    """The request has ended; its message can be dropped.

    Attributes:
        outcome: How it ended.
    """

    outcome: Outcome


LeaseAnswer = Granted | Held | Over
