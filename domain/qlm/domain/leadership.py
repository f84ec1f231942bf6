"""Which controller plans: the lead, and the terms that fence whoever had it before."""

from typing import Final

from qlm.domain.ids import ControllerId
from qlm.domain.values import value

WAKE_LEADER: Final = "leader"
"""Why controllers are woken when the lead was given back: whoever stands by may take it."""


@value(kw_only=False, order=True)
class Term:
    """The fencing number of a leadership; later ones win.

    Attributes:
        incarnation: Identity of the store's content; an emptied store gets a larger one.
        n: How often the lead has changed hands in this incarnation, from 1.
    """

    incarnation: int
    n: int


@value
class Leadership:
    """The right of one controller to plan; what others ask to change under their terms is refused.

    Attributes:
        leader: Who leads.
        term: Under which term.
        since_ns: From when on, nanoseconds since the epoch.
    """

    leader: ControllerId
    term: Term
    since_ns: int
