"""Leadership of one controller, and the terms that fence its predecessors."""

from typing import Final

from qlm.domain.ids import ControllerId
from qlm.domain.values import value

WAKE_LEADER: Final = "leader"
"""Reason of a wake-up when the leader resigned: a controller on standby may take over."""


@value(kw_only=False, order=True)
class Term:
    """The fencing number of a leadership; later ones win.

    Attributes:
        incarnation: Identity of the store's content; an emptied store gets a larger one.
        n: Number of the leadership in this incarnation, from 1.
    """

    incarnation: int
    n: int


@value
class Leadership:
    """Exclusive right of one controller to plan; writes under another term are refused.

    Attributes:
        leader: The controller.
        term: Fencing number.
        since_ns: Start, nanoseconds since the epoch.
    """

    leader: ControllerId
    term: Term
    since_ns: int
