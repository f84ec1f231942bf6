"""Virtual clock and event queue: a total order of events, independent of the order of scheduling."""

import itertools
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Final

from qlm.domain.errors import InvalidValueError

EPOCH_NS: Final = 1_600_000_000 * 1_000_000_000
"""Start of virtual time, nanoseconds since the epoch. Far from 0: no time is mistaken for a missing one."""


class Rank(IntEnum):
    """Order of simultaneous events, by the part that they concern."""

    FAULT = 0
    ENGINE = 1
    STORE = 2
    BROKER = 3
    NOTICE = 4
    TIMER = 5
    ARRIVAL = 6
    PERIODIC = 7
    """Polls, heartbeats, and the gateway's refresh of its load."""
    CONTROLLER = 8


class EventQueue:
    """Virtual clock with the events to come.

    Events are ordered by time, then by rank, then by the number of their entity, then by the order in which
    that entity scheduled them. Two entities never share a (rank, number).

    Attributes:
        events: Events executed so far.
    """

    def __init__(self) -> None:
        self.now_ns = EPOCH_NS
        self.events = 0
        self._stopped = False
        self._heap: list[tuple[int, int, int, int, Callable[[Any], None], Any]] = []
        self._next_number = itertools.count().__next__

    def schedule(
        self, at_ns: int, rank: Rank, entity: int, do: Callable[[Any], None], what: Any = None
    ) -> None:
        """Call `do(what)` at `at_ns`.

        Raises:
            InvalidValueError: The time has passed.
        """
        if at_ns < self.now_ns:
            raise InvalidValueError("at_ns", at_ns, f"{self.now_ns} or later")
        heappush(self._heap, (at_ns, rank, entity, self._next_number(), do, what))

    def run(self, until_ns: int, events_max: int) -> None:
        """Execute up to `events_max` events, those at `until_ns` included, or until `stop`."""
        heap, events = self._heap, 0
        while heap and events < events_max and not self._stopped and heap[0][0] <= until_ns:
            self.now_ns, _rank, _entity, _number, do, what = heappop(heap)
            events += 1
            do(what)
        self.events += events

    def stop(self) -> None:
        """End `run` after the current event."""
        self._stopped = True

    @property
    def next_ns(self) -> int | None:
        """Time of the next event; None if there is none."""
        return self._heap[0][0] if self._heap else None

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return (self.now_ns - EPOCH_NS) / 1e9
