"""Requests with output for the store, and the times of the next writes."""

from qlm.agents.core.request import Phase, TrackedRequest
from qlm.domain.ids import RequestId


class PendingOutput:
    """Requests with tokens or an outcome for their output log, in the order in which they got them.

    Ends are written apart from all else, since a store may have to wait for its disk for them. A request has
    one write under way at most.

    Attributes:
        touched: Requests to classify again before the next write.
        ends: Requests whose outcome is to be written, with their last tokens.
        urgent: Others whose client or queue waits for this write: the first token, or the last before a move.
        waiting: Requests in the middle of an answer.
        in_flight: A write without outcomes has not been answered yet.
        all_in_flight: That write included the waiting ones.
        urgent_after_ns: Earliest time of the next write.
        all_after_ns: Earliest time of the next write that includes waiting requests.
        lateness_ns: Mean lateness of the timers of the process, a measure of how busy it is.
    """

    def __init__(self) -> None:
        self.touched: dict[RequestId, TrackedRequest] = {}
        self.ends: dict[RequestId, TrackedRequest] = {}
        self.urgent: dict[RequestId, TrackedRequest] = {}
        self.waiting: dict[RequestId, TrackedRequest] = {}
        self.in_flight = False
        self.all_in_flight = False
        self.urgent_after_ns = 0
        self.all_after_ns = 0
        self.lateness_ns = 0

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

    def place(self, tracked: TrackedRequest, *, ends: bool) -> None:
        """Queue a request with something to write; `ends` if that includes its outcome."""
        urgent = tracked.sent == 0 or tracked.phase is Phase.CLOSING
        wanted = self.ends if ends else self.urgent if urgent else self.waiting
        for queue in (self.ends, self.urgent, self.waiting):
            if queue is not wanted:
                queue.pop(tracked.id, None)
        wanted[tracked.id] = tracked

    def remove(self, id: RequestId) -> None:
        """Remove a request that has nothing to write."""
        self.ends.pop(id, None)
        self.urgent.pop(id, None)
        self.waiting.pop(id, None)

    def forget(self, id: RequestId) -> None:
        """Remove a request that leaves the agent."""
        self.touched.pop(id, None)
        self.remove(id)

    def due_ns(self) -> int | None:
        """Return the earliest time of the next write; None if none is due, or one must be answered before."""
        if self.ends:
            return self.urgent_after_ns
        if self.in_flight or not (self.urgent or self.waiting):
            return None
        return self.urgent_after_ns if self.urgent else self.all_after_ns

    def begin_write(self, now_ns: int) -> tuple[list[TrackedRequest], list[TrackedRequest]]:
        """Remove and return the requests of the two writes that start now: of those that go on, of ends."""
        ending, taken = list(self.ends.values()), list[TrackedRequest]()
        self.ends.clear()
        if not self.in_flight:
            taken += self.urgent.values()
            self.urgent.clear()
            self.all_in_flight = now_ns >= self.all_after_ns
            if self.all_in_flight:
                taken += self.waiting.values()
                self.waiting.clear()
            self.in_flight = bool(taken)
        return taken, ending

    def end_write(self, now_ns: int, *, interval_ns: int) -> None:
        """Note that the store confirmed what goes on; waiting requests follow `interval_ns` later."""
        self.in_flight = False
        if self.all_in_flight:
            self.all_after_ns = now_ns + interval_ns

    def fail_write(self, retry_at_ns: int, *, ends: bool) -> None:
        """Note that the store did not write; `ends` if it was to write outcomes. Wait until `retry_at_ns`."""
        self.in_flight &= ends
        self.urgent_after_ns = self.all_after_ns = retry_at_ns
