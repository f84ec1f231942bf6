"""Timers of the agent: due times of single requests, and the next Tick."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.domain.actions import Action, SetTimer

_COMPACT_MIN: Final = 64


class DueTimes:
    """Due times of requests, earliest first. Entries that no longer apply are skipped.

    Args:
        applies: Decides if an entry still applies, by its request and its time.

    Attributes:
        pending: A heap of entries.
    """

    def __init__(self, applies: Callable[[TrackedRequest, int], bool]) -> None:
        self._applies = applies
        self.pending: list[tuple[int, int, TrackedRequest]] = []
        self._count = count()
        self._compact_at = _COMPACT_MIN

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, at_ns: int, tracked: TrackedRequest) -> None:
        """Add a due time."""
        if len(self.pending) >= self._compact_at:
            # Requests end long before far deadlines; without this, all of them would be kept until then.
            self.pending = [entry for entry in self.pending if self._applies(entry[2], entry[0])]
            heapq.heapify(self.pending)
            self._compact_at = max(_COMPACT_MIN, 2 * len(self.pending))
        heapq.heappush(self.pending, (at_ns, next(self._count), tracked))

    def next_ns(self) -> int | None:
        """Return the first time that still applies."""
        heap = self.pending
        while heap and not self._applies(heap[0][2], heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ns: int) -> list[TrackedRequest]:
        """Remove and return the requests that are due."""
        due = []
        while self.pending and self.pending[0][0] <= now_ns:
            at_ns, _, tracked = heapq.heappop(self.pending)
            if self._applies(tracked, at_ns):
                due.append(tracked)
        return due


class Alarm:
    """The earliest time at which the agent needs a Tick, requested once.

    A Tick may belong to an earlier request for one. So each Tick clears the alarm, and every rule that
    still needs a Tick asks again.
    """

    def __init__(self) -> None:
        self._at_ns: int | None = None
        self._requested_ns: int | None = None

    def want(self, at_ns: int) -> None:
        """Request a Tick no later than `at_ns`."""
        if self._at_ns is None or at_ns < self._at_ns:
            self._at_ns = at_ns

    def clear(self) -> None:
        """Forget all requests: a Tick has come."""
        self._at_ns = self._requested_ns = None

    def actions(self) -> list[Action]:
        """Return the request for the Tick unless it was returned before."""
        if self._at_ns is None or self._at_ns == self._requested_ns:
            return []
        self._requested_ns = self._at_ns
        return [SetTimer(at_ns=self._at_ns)]
