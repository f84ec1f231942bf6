"""A client session bound to its sink."""

from dataclasses import dataclass, field
from typing import Final

from qlm.domain.request import RequestMetadata
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.session import Session, Timing
from qlm.gateway.sessions.sink import Sink

NEVER_NS: Final = 2**63


@dataclass(slots=True, eq=False)
class Subscription:
    """A client session, the sink of its answer, and what the store knows of it.

    Attributes:
        session: The protocol of one client's answer.
        sink: Destination of the answer.
        counts_in_metrics: This subscription reports the end of the request to the metrics.
        indexed: The store knows the request and that this gateway watches it, as far as we know.
        watched_ns: Time of the last call that made it so.
        published: The queue had its message.
        index_pending_in: Incarnation of the store in which this gateway published the request and must still
            index it. None if it is indexed, or if the agent or controller with its message indexes it.
        due_ns: Time of its entry in the timer queue.
        predicted_s: Forecast on arrival of the time from arrival to the end of the answer; None without one.
    """

    session: Session
    sink: Sink
    counts_in_metrics: bool
    indexed: bool = False
    watched_ns: int = 0
    published: bool = False
    index_pending_in: int | None = None
    due_ns: int = field(default=NEVER_NS)
    predicted_s: float | None = None

    @property
    def metadata(self) -> RequestMetadata:
        """The request."""
        return self.session.metadata

    def count_for(self, earlier: "Subscription", now_ns: int) -> None:
        """Report the end of the request in place of an earlier subscription, which ends."""
        self.counts_in_metrics = True
        self.predicted_s = earlier.predicted_s
        self.session.take_times(earlier.session, now_ns)


def timing_of(limits: GatewayLimits, grace_s: float) -> Timing:
    """Return the intervals of a session whose client may be disconnected for `grace_s` seconds."""
    return Timing(
        keepalive_ns=_ns(limits.keepalive_s),
        poll_ns=_ns(limits.poll_s),
        poll_max_ns=_ns(limits.poll_max_s),
        grace_ns=_ns(grace_s),
        lost_after_ns=_ns(limits.lost_after_s),
        unknown_after_ns=_ns(limits.unknown_after_s),
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
