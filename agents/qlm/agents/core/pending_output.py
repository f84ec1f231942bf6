"""Requests with output for the store, and the times of the next writes."""

from qlm.agents.core.request import Phase, TrackedRequest
from qlm.domain.ids import RequestId


class PendingOutput:
    """Requests with tokens or an outcome for their output log, in the order in which they got them.

    Attributes:
        touched: Requests to classify again before the next write.
        urgent: Requests whose client waits for this write: the first token, or the end.
        waiting: Requests in the middle of an answer.
        in_flight: A write has not been answered yet.
        all_in_flight: That write included the waiting ones.
        urgent_after_ns: Earliest time of the next write.
        all_after_ns: Earliest time of the next write that includes waiting requests.
    """

    def __init__(self) -> None:
        self.touched: dict[RequestId, TrackedRequest] = {}
        self.urgent: dict[RequestId, TrackedRequest] = {}
        self.waiting: dict[RequestId, TrackedRequest] = {}
        self.in_flight = False
        self.all_in_flight = False
        self.urgent_after_ns = 0
        self.all_after_ns = 0

    def touch(self, tracked: TrackedRequest) -> None:
        """Classify a request again before the next write."""
        self.touched[tracked.id] = tracked

    def grown(self, tracked: TrackedRequest) -> None:
        """Add a generating request that got a token after all of its tokens had been sent."""
        if tracked.claim.epoch is not None:
            (self.waiting if tracked.sent else self.urgent)[tracked.id] = tracked

    def take_touched(self) -> dict[RequestId, TrackedRequest]:
        """Remove and return the requests to classify."""
        touched, self.touched = self.touched, {}
        return touched

    def place(self, tracked: TrackedRequest) -> None:
        """Queue a request with something to write, as urgent or waiting."""
        id = tracked.id
        if tracked.sent == 0 or tracked.phase is Phase.CLOSING:
            self.waiting.pop(id, None)
            self.urgent[id] = tracked
        else:
            self.urgent.pop(id, None)
            self.waiting[id] = tracked

    def remove(self, id: RequestId) -> None:
        """Remove a request that has nothing to write."""
        self.urgent.pop(id, None)
        self.waiting.pop(id, None)

    def forget(self, id: RequestId) -> None:
        """Remove a request that leaves the agent."""
        self.touched.pop(id, None)
        self.remove(id)

    def due_ns(self) -> int | None:
        """Return the earliest time of the next write; None if nothing is due or a write is in flight."""
        if self.in_flight or not (self.urgent or self.waiting):
            return None
        return self.urgent_after_ns if self.urgent else self.all_after_ns

    def begin_write(self, now_ns: int) -> list[TrackedRequest]:
        """Remove and return the requests of a write that starts now."""
        self.in_flight, self.all_in_flight = True, now_ns >= self.all_after_ns
        taken = list(self.urgent.values())
        self.urgent.clear()
        if self.all_in_flight:
            taken += self.waiting.values()
            self.waiting.clear()
        return taken

    def end_write(self, now_ns: int, *, interval_ns: int) -> None:
        """Note that the store confirmed the write; waiting requests follow `interval_ns` later."""
        self.in_flight = False
        if self.all_in_flight:
            self.all_after_ns = now_ns + interval_ns

    def fail_write(self, retry_at_ns: int) -> None:
        """Note that the store was unreachable: write nothing before `retry_at_ns`."""
        self.in_flight = False
        self.urgent_after_ns = self.all_after_ns = retry_at_ns
