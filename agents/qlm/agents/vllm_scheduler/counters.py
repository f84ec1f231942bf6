"""Counters of the scheduler, for its log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOG_EVERY_S: Final = 60.0
"""Least time between two lines of the log."""


class Counters:
    """What the scheduler did since the last line of the log, and what it cost.

    Attributes:
        preemptions: Requests that the policy preempted.
        holds: Iterations that requests were held, added up.
    """

    __slots__ = ("_deciding_s", "_decisions", "_logged_s", "_steps", "_taken_s", "holds", "preemptions")

    def __init__(self) -> None:
        self._logged_s: float | None = None
        self._clear()

    def _clear(self) -> None:
        self._steps = self._decisions = self.preemptions = self.holds = 0
        self._taken_s = self._deciding_s = 0.0

    def step(self, taken_s: float) -> None:
        """Count a step, with the time that it took beside vLLM's own; decisions included."""
        self._steps += 1
        self._taken_s += taken_s

    @contextmanager
    def decision(self) -> Iterator[None]:
        """Count a decision, with its time."""
        began_s = time.perf_counter()
        yield
        self._decisions += 1
        self._deciding_s += time.perf_counter() - began_s

    def due(self, now_s: float) -> bool:
        """Return True if it is time for a line of the log."""
        if self._logged_s is not None and now_s - self._logged_s < LOG_EVERY_S:
            return False
        first, self._logged_s = self._logged_s is None, now_s
        return not first

    def text(self) -> str:
        """Return a line for the log and start anew; empty if nothing was done."""
        if not self._steps:
            return ""
        step_us = 1e6 * (self._taken_s - self._deciding_s) / self._steps
        decision_us = 1e6 * self._deciding_s / max(1, self._decisions)
        line = (
            f"QLM's scheduler: {self._steps} steps, {step_us:.0f} us each; {self._decisions} decisions, "
            f"{decision_us:.0f} us each; {self.preemptions} preemptions, {self.holds} holds"
        )
        self._clear()
        return line
