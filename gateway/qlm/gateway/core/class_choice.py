"""Choice of the class in whose queue a request waits: often used ones are apart, all others share.

Every class costs a queue, a group and a place in each plan, and clients choose objectives freely. A request
keeps its own deadline wherever it waits; only the order in its queue is that of arrival.
"""

from collections import Counter
from typing import Final

from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import STEPS, Slo, SloGrid

WINDOW_NS: Final = 60_000_000_000
"""Uses are counted over this time, and the same time before it."""

KNOWN_PER_CLASS: Final = 32
"""Classes counted in a window, in multiples of the limit; a frequent one is among the first."""

SHARED_GRIDS: Final = (
    SloGrid(steps=STEPS[3], paced=False),
    SloGrid(steps=STEPS[1], decades=2, paced=False),
)
"""Grids of shared classes, the finer first; the last one has a handful of classes per priority."""


class ClassUse:
    """Uses of the classes of one grid in this window and in the one before."""

    def __init__(self, classes_max: int) -> None:
        self._classes_max = classes_max
        self._now: Counter[RequestClass] = Counter()
        self._before: Counter[RequestClass] = Counter()
        self._distinct = self._total = self._total_before = 0

    def count(self, cls: RequestClass) -> None:
        """Count one use."""
        self._total += 1
        if cls in self._now:
            self._now[cls] += 1
        elif len(self._now) < KNOWN_PER_CLASS * self._classes_max:
            self._now[cls] = 1
            self._distinct += cls not in self._before

    def next_window(self) -> None:
        """Begin another window."""
        self._before, self._now = self._now, Counter()
        self._total_before, self._total = self._total, 0
        self._distinct = len(self._before)

    def is_apart(self, cls: RequestClass) -> bool:
        """Return True if there are few classes, or if this one is among the few that are used most."""
        if self._distinct <= self._classes_max:
            return True
        uses = self._now[cls] + self._before[cls]
        return uses * self._classes_max >= self._total + self._total_before


class ClassChoice:
    """Chooses the classes of one gateway's requests."""

    def __init__(self, steps: int, classes_max: int) -> None:
        """Choose on a grid of `steps` per decade while at most `classes_max` classes are in use."""
        self._grids = (SloGrid(steps=STEPS[steps]), *SHARED_GRIDS)
        self._uses = [ClassUse(classes_max) for _ in self._grids[:-1]]
        self._window = 0

    def of(self, model: ModelId, slo: Slo, priority: int, now_ns: int) -> RequestClass:
        """Return the class of a request that arrives now, and count it."""
        self._roll(now_ns // WINDOW_NS)
        for grid, uses in zip(self._grids, self._uses, strict=False):
            cls = request_class(model, slo, priority, grid)
            uses.count(cls)
            if uses.is_apart(cls):
                return cls
        return request_class(model, slo, priority, self._grids[-1])

    def _roll(self, window: int) -> None:
        for _ in range(min(2, abs(window - self._window))):  # also after a clock was set back
            for uses in self._uses:
                uses.next_window()
        self._window = window
