"""Port to the outbox: ends of which other programs are to be notified, which the shared state has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """An end of which other programs are to be notified.

    Attributes:
        subject: Id of the request or batch that ended.
        ended_as: How it ended: the outcome of a request, the status of a batch.
        tenant: Its tenant.
        at_ns: Time of its end, nanoseconds since the epoch.
        attempts: Claims so far, the present one included.
        failures: Claims so far after which it was put back because a receiver failed.
        done: Names of the receivers that need no further attempt.
    """

    subject: str
    ended_as: str
    tenant: str
    at_ns: int
    attempts: int = 0
    failures: int = 0
    done: tuple[str, ...] = ()


class OutboxState(NamedTuple):
    """Number of events that wait, and of those that were dropped because too many waited."""

    waiting: int
    dropped: int


class Outbox(Protocol):
    """Events that are kept until they are settled: each is sent at least once.

    The end of a request with the extension `notify` adds its event in the same atomic step. The shared state
    has the only copy: where it is emptied, there are none. Every method may raise StoreUnavailableError.
    """

    async def add_end(self, event: EndEvent) -> None:
        """Add an event unless there is one of its subject."""
        ...

    async def claim_ends(self, limit: int, claim_s: float) -> Sequence[EndEvent]:
        """Claim events that are due, those due first: no one else gets them for `claim_s`."""
        ...

    async def settle_end(self, event: EndEvent, again_ns: int | None) -> bool:
        """Settle a claimed event; False, without effect, if it was claimed again or removed since.

        One that is due again later may be settled once more until it is claimed again.

        Args:
            event: The event, with its failures, those for whom it is done, and how it ended.
            again_ns: The time at which it is due again, nanoseconds since the epoch; None to remove it.
        """
        ...

    async def outbox_state(self) -> OutboxState:
        """Return how many events there are."""
        ...
