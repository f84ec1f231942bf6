"""What an operation on the shared state causes beside its answer: announcements, and changes to keep."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from qlm.domain.ids import GatewayId, InstanceId, RequestId, TokenIds
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice

WAKE_REQUEST: Final = "request"
"""A request waits that was not there before."""
WAKE_REMOVED: Final = "removed"
"""A waiting request ended: its group counts one too many."""
WAKE_RETURNED: Final = "returned"
"""A request waits again: no group may cover it."""
WAKE_INSTANCE: Final = "instance"
"""An instance came, changed or left."""
WAKE_SUBSCRIBED: Final = "subscribed"
"""The subscription is live (again): earlier wakeups may have been missed."""


class Logged(NamedTuple):
    """Tokens that an operation added to an output log.

    Attributes:
        id: The request.
        offset: Length of the log before them.
        token_ids: The tokens.
        at_ns: When, nanoseconds since the epoch.
    """

    id: RequestId
    offset: int
    token_ids: TokenIds
    at_ns: int


@dataclass(slots=True, init=False)
class Effects:
    """Announcements and durable changes of one operation, each list in order.

    Attributes:
        outputs: Output slices, each with the gateway it goes to.
        notices: Notices, each with the instance it goes to.
        wakeups: Reasons to wake the controller.
        logged: Tokens added to output logs.
        ended: Requests that ended.
        dropped: Ended requests that are no longer kept.
    """

    outputs: list[tuple[GatewayId, OutputSlice]]
    notices: list[tuple[InstanceId, InstanceNotice]]
    wakeups: list[str]
    logged: list[Logged]
    ended: list[RequestId]
    dropped: list[RequestId]

    def __init__(
        self,
        *,
        outputs: list[tuple[GatewayId, OutputSlice]] | None = None,
        notices: list[tuple[InstanceId, InstanceNotice]] | None = None,
        wakeups: list[str] | None = None,
    ) -> None:
        """Written out, since every step of the store makes one: half as long as by a dataclass."""
        self.outputs = [] if outputs is None else outputs
        self.notices = [] if notices is None else notices
        self.wakeups = [] if wakeups is None else wakeups
        self.logged = []
        self.ended = []
        self.dropped = []

    @property
    def durable(self) -> bool:
        """Whether anything changed that must outlive a crash."""
        return bool(self.logged or self.ended or self.dropped)
