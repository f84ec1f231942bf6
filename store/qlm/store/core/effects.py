"""Effects of an operation beside its answer: announcements and durable changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qlm.domain.formats.extensions import LogExtensions, merged, without_logprobs
from qlm.domain.ids import GatewayId, InstanceId, RequestId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice
from qlm.domain.ports.outbox import EndEvent

WAKE_REQUEST: Final = "request"
"""A new request waits for a plan; of others, `WAKE_JOINED` tells."""
WAKE_REMOVED: Final = "removed"
"""A waiting request ended: the count of its group is one too large."""
WAKE_RETURNED: Final = "returned"
"""A request waits again: it may be in no group."""
WAKE_INSTANCE: Final = "instance"
"""An instance appeared, changed or left."""
WAKE_SUBSCRIBED: Final = "subscribed"
"""The subscription is live (again): earlier wakeups may have been missed."""


class Logged(NamedTuple):
    """Tokens that an operation appended to an output log; `offset` is the length of the log before them."""

    id: RequestId
    offset: int
    token_ids: Sequence[int]
    at_ns: int


@dataclass(slots=True, init=False)
class Effects:
    """Announcements and durable changes of one operation, each list in order.

    Attributes:
        outputs: Output slices, each with its receiver.
        notices: Notices, each with its receiver.
        wakeups: Reasons to wake the controller.
        logged: Tokens added to output logs.
        extended: Logs with other extensions: their fields, and the new ones of what adds up.
        ended: Requests that ended.
        dropped: Ended requests that are no longer stored.
        outbox: Events of the outbox by subject, as they are now; None for one that was removed.
    """

    outputs: list[tuple[GatewayId, OutputSlice]]
    notices: list[tuple[InstanceId, InstanceNotice]]
    wakeups: list[str]
    logged: list[Logged]
    extended: dict[RequestId, LogExtensions]
    ended: list[RequestId]
    dropped: list[RequestId]
    outbox: dict[str, EndEvent | None]

    def __init__(
        self,
        *,
        outputs: list[tuple[GatewayId, OutputSlice]] | None = None,
        notices: list[tuple[InstanceId, InstanceNotice]] | None = None,
        wakeups: list[str] | None = None,
    ) -> None:
        # Written by hand: half the time of a generated one, and every operation makes an Effects.
        self.outputs = [] if outputs is None else outputs
        self.notices = [] if notices is None else notices
        self.wakeups = [] if wakeups is None else wakeups
        self.logged = []
        self.extended = {}
        self.ended = []
        self.dropped = []
        self.outbox = {}

    @property
    def durable(self) -> bool:
        """True if a change must survive a crash."""
        return bool(self.logged or self.extended or self.ended or self.dropped or self.outbox)

    def extend(self, id: RequestId, former: LogExtensions, new: LogExtensions) -> None:
        """Note that a log with extensions `former` has got new ones."""
        self.extended[id] = merged(self.extended.get(id) or without_logprobs(former), new)
