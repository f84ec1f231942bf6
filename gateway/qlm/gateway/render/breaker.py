"""Breaker: spares clients the wait for a server that does not answer."""

from typing import Final

from qlm.domain.ports.clock import Clock

FAILURES_MAX: Final = 3
PAUSE_NS: Final = 2_000_000_000


class Breaker:
    """Opens for a pause after some failures in a row; the next failure after the pause opens it again."""

    def __init__(self, clock: Clock, failures_max: int = FAILURES_MAX, pause_ns: int = PAUSE_NS) -> None:
        self._clock = clock
        self._failures_max = failures_max
        self._pause_ns = pause_ns
        self._failures = 0
        self._open_until_ns = 0

    @property
    def is_open(self) -> bool:
        """True while no call should be made."""
        return self._clock.now_ns() < self._open_until_ns

    @property
    def open_until_ns(self) -> int:
        """End of the latest pause, nanoseconds since the epoch; 0 if there was none."""
        return self._open_until_ns

    def failed(self) -> bool:
        """Note a call without an answer; return True for the one of a row that first opens the breaker."""
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open_until_ns = self._clock.now_ns() + self._pause_ns
        return self._failures == self._failures_max

    def answered(self) -> None:
        """Note a call with an answer."""
        self._failures = 0
