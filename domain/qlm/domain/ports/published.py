"""Port to what controllers publish in the shared state: plans, forecasts, and what they have learned."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from qlm.domain.leadership import Term


class PublishedKind(StrEnum):
    """Kind of what controllers publish, of which the shared state keeps the latest; its key in a store."""

    PLAN = "plan"
    """The plan with its problem, for operators."""
    SIGNAL = "signal"
    """The forecast for admission, for gateways."""
    CLUSTERS = "clusters"
    """The token clusters, for gateways and for the controllers after this one."""
    HISTORY = "history"
    """What a controller has learned, for the controllers after it."""


class PublishedState(Protocol):
    """Reads of what a controller has published."""

    async def published(self, kind: PublishedKind) -> bytes | None:
        """Return the latest of a kind, as it was published; None if there is none, or if it is too old.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        ...


class Publisher(Protocol):
    """Writes of the leading controller."""

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        """Replace the latest of a kind.

        Token clusters and the history outlive the process wherever results do.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
            StoreUnavailableError: The store is unavailable.
        """
        ...


def operation(method: str, arguments: Sequence[object]) -> str:
    """Return the name of a call to a store: its method, with the kind of what it publishes or reads."""
    kind = arguments[0] if arguments else None
    return f"{method}_{kind}" if isinstance(kind, PublishedKind) else method
