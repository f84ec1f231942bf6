"""Leases, the exclusive right to run a request, and the epochs that fence writers."""

from dataclasses import dataclass

from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.values import value


@value(kw_only=False, order=True)
class Epoch:
    """The fencing number of a lease; later ones win.

    Attributes:
        incarnation: Identity of the store's content; an emptied store gets a larger one.
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
