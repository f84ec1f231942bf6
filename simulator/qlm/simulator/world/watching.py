"""What somebody who looks on is told of a simulation while it runs."""

from qlm.controller.protocol import Decision
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.request import RequestCard


class Watcher:
    """Looks on and changes nothing; override what is of interest."""

    def arriving(self, number: int, card: RequestCard) -> None:
        """A request has been published, and is about to be indexed as waiting."""

    def leased(self, id: RequestId, group: GroupId | None) -> None:
        """An agent took the lease of a request, pulled for that group."""

    def submitted(self, id: RequestId, instance: int) -> None:
        """A generation starts on an instance."""

    def decided(self, decision: Decision) -> None:
        """The controller's decision is being applied."""
