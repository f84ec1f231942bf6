"""Virtual time: events in a total order that does not depend on the order in which they were scheduled."""

import itertools
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Final

from qlm.domain.errors import InvalidValueError

EPOCH_NS: Final = 1_600_000_000 * 1_000_000_000
"""Where virtual time begins, nanoseconds since the epoch: far from 0, so that no time is taken for none."""


class Rank(IntEnum):
    """What goes first among events of one moment."""

    FAULT = 0
    ENGINE = 1
    STORE = 2
    BROKER = 3
    NOTICE = 4
    TIMER = 5
    ARRIVAL = 6
    BEAT = 7
    CONTROLLER = 8


class Timeline:
    """The future, and the present moment.

    Events are ordered by time, then by rank, then by the number of the entity they are about, then by
    the order in which that entity's were scheduled. Two entities never share a (rank, number).
    """

    def __init__(self) -> None:
        self.now_ns = EPOCH_NS
        self.events = 0
        self._stopped = False
        self._future: list[tuple[int, int, int, int, Callable[[Any], None], Any]] = []
        self._numbers = itertools.count()

    def at(self, at_ns: int, rank: Rank, entity: int, do: Callable[[Any], None], what: Any = None) -> None:
        """Call `do(what)` at that moment.

        Raises:
            InvalidValueError: It has passed.
        """
        if at_ns < self.now_ns:
            raise InvalidValueError("at_ns", at_ns, f"{self.now_ns} or later")
        heappush(self._future, (at_ns, rank, entity, next(self._numbers), do, what))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._future:
            return False
        at_ns, _rank, _entity, _number, do, what = heappop(self._future)
        self.now_ns = at_ns
        self.events += 1
        do(what)
        return True

    def run(self, until_ns: int, events_max: int) -> None:
        """Let events happen up to a moment, itself included, until `stop`, and at most so many."""
        future, events = self._future, 0
        while future and events < events_max and not self._stopped and future[0][0] <= until_ns:
            self.now_ns, _rank, _entity, _number, do, what = heappop(future)
            events += 1
            do(what)
        self.events += events

    def stop(self) -> None:
        """Let nothing more happen in `run`."""
        self._stopped = True

    @property
    def next_ns(self) -> int | None:
        """When the next event happens; None if there is none."""
        return self._future[0][0] if self._future else None

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return (self.now_ns - EPOCH_NS) / 1e9
