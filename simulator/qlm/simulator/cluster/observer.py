"""Observer hooks of a running simulation."""

from qlm.controller.core.decide import Decision
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.request import RequestMetadata


class ClusterObserver:
    """Observer that changes nothing; override the hooks of interest."""

    def on_published(self, number: int, metadata: RequestMetadata) -> None:
        """Observe a request that has been published and is about to be indexed as waiting."""

    def on_leased(self, id: RequestId, group: GroupId | None) -> None:
        """Observe a granted lease, and the group for which the request was pulled."""

    def on_submitted(self, id: RequestId, instance: int) -> None:
        """Observe the start of a generation on an instance."""

    def on_output(self, number: int, tokens: int, at_ns: int) -> None:
        """Observe output tokens of a request, by its number, as they reach the client."""

    def on_decided(self, decision: Decision) -> None:
        """Observe a decision of the controller as it is applied."""
