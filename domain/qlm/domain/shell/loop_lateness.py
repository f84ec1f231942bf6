"""Lateness of an event loop: how long what is ready waits for its turn."""

import asyncio
from typing import Final

PERIOD_S: Final = 0.01
"""Time between two readings."""

_READINGS: Final = 8
"""Readings over which the mean is taken."""


class LoopLateness:
    """Mean lateness of timers on the running loop, read while `watch` is on.

    Attributes:
        mean_s: The mean of the latest readings; 0 without any.
    """

    def __init__(self, period_s: float = PERIOD_S) -> None:
        """Begin without a reading; there is one every `period_s`."""
        self.mean_s = 0.0
        self._period_s = period_s
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, *, on: bool) -> None:
        """Begin or end to read; a mean from before does not count."""
        if on and self._timer is None:
            self.mean_s = 0.0
            self._set()
        elif not on and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + self._period_s
        self._timer = loop.call_at(self._due_s, self._read)

    def _read(self) -> None:
        late_s = max(0.0, asyncio.get_running_loop().time() - self._due_s)
        self.mean_s += (late_s - self.mean_s) / _READINGS
        self._set()
