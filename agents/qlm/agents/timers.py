"""When an agent has something to do without being told: due moments of single requests, and the next Tick."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from qlm.agents.held import Held
from qlm.domain.actions import Action, SetTimer

_SWEEP_MIN: Final = 64


class DueTimes:
    """Moments at which something is due for a request, earliest first; what no longer applies is skipped.

    Attributes:
        pending: A heap of them; empty if nothing is due ever.
    """

    def __init__(self, applies: Callable[[Held, int], bool]) -> None:
        self._applies = applies
        self.pending: list[tuple[int, int, Held]] = []
        self._count = count()
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, at_ns: int, held: Held) -> None:
        """Have a request looked at at `at_ns`; `applies` is asked with the same moment."""
        if len(self.pending) >= self._sweep_at:
            # Requests end long before far deadlines: without this, all of them would be kept until then.
            self.pending = [entry for entry in self.pending if self._applies(entry[2], entry[0])]
            heapq.heapify(self.pending)
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self.pending))
        heapq.heappush(self.pending, (at_ns, next(self._count), held))

    def next_ns(self) -> int | None:
        """The first moment that still applies."""
        heap = self.pending
        while heap and not self._applies(heap[0][2], heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now_ns: int) -> list[Held]:
        """Take out the requests that are due."""
        due = []
        while self.pending and self.pending[0][0] <= now_ns:
            at_ns, _, held = heapq.heappop(self.pending)
            if self._applies(held, at_ns):
                due.append(held)
        return due


class Alarm:
    """The earliest moment at which the agent wants a Tick; asked for once, and again after each Tick.

    A Tick may have been for an earlier wish, so after it everybody states their wish again.
    """

    def __init__(self) -> None:
        self._at_ns: int | None = None
        self._asked_ns: int | None = None

    def want(self, at_ns: int) -> None:
        """Wish for a Tick no later than this."""
        if self._at_ns is None or at_ns < self._at_ns:
            self._at_ns = at_ns

    def rang(self) -> None:
        """Take note of a Tick."""
        self._at_ns = self._asked_ns = None

    def actions(self) -> list[Action]:
        """Ask for the Tick if it was not asked for yet."""
        if self._at_ns is None or self._at_ns == self._asked_ns:
            return []
        self._asked_ns = self._at_ns
        return [SetTimer(at_ns=self._at_ns)]
