"""Port to what controllers publish in the shared state: plans, forecasts, and what they have learned."""

from typing import Protocol

from qlm.domain.leadership import Term


class LearnedState(Protocol):
    """What a controller has learned, for gateways and for the controllers after it.

    Every method may raise StoreUnavailableError.
    """

    async def published_clusters(self) -> bytes | None:
        """Return the published token clusters; None if there are none."""
        ...

    async def history(self) -> bytes | None:
        """Return what a controller has learned, as it was kept; None if there is none, or it is too old."""
        ...


class PublishedPlans(Protocol):
    """The latest plan and forecast, for gateways.

    Every method may raise StoreUnavailableError.
    """

    async def published_plan(self) -> bytes | None:
        """Return the published plan; None if there is none, or if it is too old."""
        ...

    async def published_signal(self) -> bytes | None:
        """Return the published forecast for admission; None if there is none, or if it is too old."""
        ...


class PlanPublisher(Protocol):
    """Writes of the leading controller.

    Every method may raise StoreUnavailableError.
    """

    async def publish_plan(self, data: bytes, term: Term | None = None) -> None:
        """Replace the published plan.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    async def publish_signal(self, data: bytes, term: Term | None = None) -> None:
        """Replace the published forecast for admission.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    async def publish_clusters(self, data: bytes, term: Term | None = None) -> None:
        """Replace the published token clusters, which outlive a restart of this process.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...

    async def keep_history(self, data: bytes, term: Term | None = None) -> None:
        """Replace what was learned; it outlives the process wherever results do.

        Raises:
            NotLeadingError: The term is not current; nothing was changed.
        """
        ...
