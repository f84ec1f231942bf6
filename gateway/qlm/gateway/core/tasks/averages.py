"""Running averages of what calls of tasks took, and of how many calls tasks had."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from qlm.rct_estimator.normal import NOTHING, Normal

OLD_WEIGHT: Final = 200.0
"""Observations after which an average weighs the newest by their inverse: it follows changes."""

TASKS_KEPT: Final = 200
"""Lengths of tasks kept, the newest."""


class Average:
    """Mean and variance of a time, in seconds; of many observations the newest count most."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_s = 0.0
        self._var = 0.0

    @property
    def known(self) -> bool:
        """True if anything was observed."""
        return self._weight > 0

    def observe(self, time_s: float) -> None:
        """Take one observation."""
        self._weight = min(self._weight + 1.0, OLD_WEIGHT)
        share, off_s = 1.0 / self._weight, time_s - self._mean_s
        self._mean_s += share * off_s
        self._var = (1.0 - share) * (self._var + share * off_s * off_s)

    def time(self) -> Normal:
        """Return mean and variance; 0 before the first observation."""
        return Normal(self._mean_s, self._var) if self.known else NOTHING


class TaskLengths:
    """Calls of the tasks that ended last."""

    def __init__(self) -> None:
        self._calls: deque[int] = deque(maxlen=TASKS_KEPT)

    def observe(self, calls: int) -> None:
        """Take the number of calls of a task that has ended."""
        self._calls.append(calls)

    def left_after(self, calls: int) -> float:
        """Return the mean number of calls to come of tasks that had more than `calls`; 0 if none had."""
        return _mean(each - calls for each in self._calls if each > calls)


def _mean(values: Iterable[int]) -> float:
    found = tuple(values)
    return sum(found) / len(found) if found else 0.0
