"""Pauses between two looks at the queue."""

from typing import Final

LOOK_SOON_S: Final = 0.1
"""Least pause between two looks, unless the usual one is shorter."""


class LookPauses:
    """Pauses that grow after a look that was asked for, up to the usual one.

    Attributes:
        least_s: The least pause, seconds.
    """

    def __init__(self, usual_s: float) -> None:
        self.least_s = min(LOOK_SOON_S, usual_s)
        self._usual_s = usual_s
        self._pause_s = usual_s

    def asked(self) -> None:
        """Note that a look is asked for: what is admitted fills the queue, as far as is known."""
        self._pause_s = self.least_s

    def next_s(self) -> float:
        """Return the time after which to look even if no one asks: twice as long each time."""
        self._pause_s = min(2 * self._pause_s, self._usual_s)
        return self._pause_s
