"""Answers of the store to a request for a lease."""

from qlm.domain.ids import TokenIds
from qlm.domain.lease import Holder, Lease
from qlm.domain.outcome import Outcome
from qlm.domain.values import value


@value
class Granted:
    """The lease was granted.

    Attributes:
        lease: The lease, with a new epoch.
        output: Token ids already in the output log, to resume from.
        preemptions: Preemptions of the request so far, by all agents.
        engine_losses: Engines that failed under it so far, at all agents.
    """

    lease: Lease
    output: TokenIds
    preemptions: int = 0
    engine_losses: int = 0


@value
class LeaseHeldElsewhere:
    """Another live holder runs the request."""

    holder: Holder


@value
class Over:
    """The request has ended; its message can be dropped."""

    outcome: Outcome


@value
class IdTaken:
    """The id is that of another request; the message can be dropped.

    Two bodies came with one Idempotency-Key at the same time, and the other one was indexed first.
    """


LeaseAnswer = Granted | LeaseHeldElsewhere | Over | IdTaken
