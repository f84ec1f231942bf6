"""Who may run a request: leases and the epochs that fence writers."""

from dataclasses import dataclass

from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.values import value


@value(kw_only=False, order=True)
class Epoch:
    """The fencing number of a lease; later ones win.

    Attributes:
        incarnation: Identity of the store's content; an emptied store gets a larger one.
        n: How often the request has been leased in this incarnation, from 1.
    """

    incarnation: int
    n: int


@dataclass(frozen=True, slots=True)
class Holder:
    """An agent process that holds leases: its instance, and which life of it."""

    instance: InstanceId
    session: SessionId


@value(kw_only=False)
class Lease:
    """The right of one holder to run one request; writes under an older epoch are refused."""

    holder: Holder
    epoch: Epoch
