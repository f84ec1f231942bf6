"""Notices of the store to an instance, sent between two polls."""

from dataclasses import dataclass

from qlm.domain.ids import RequestId
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChanged:
    """The instance's virtual queue has new work or a new order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """A request that the instance holds must end.

    Attributes:
        id: The request.
        outcome: cancelled, expired, or stop (a stop string appeared).
    """

    id: RequestId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """The instance must return its requests and pull no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHeld:
    """By the store, the instance holds the lease of a request.

    A store that came back with an earlier state may know nothing of its end.

    Attributes:
        id: The request.
        epoch: Epoch of the lease.
    """

    id: RequestId
    epoch: Epoch


InstanceNotice = QueueChanged | CancelAsked | DrainAsked | LeaseHeld
