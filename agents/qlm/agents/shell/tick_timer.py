"""Timer of an agent on an asyncio loop."""

import asyncio
from collections.abc import Callable

from qlm.domain.ports.clock import Clock


class TickTimer:
    """Calls a function once at the earliest time that was asked for.

    Args:
        clock: The clock of the times.
        tick: Called when the time has come.
    """

    def __init__(self, clock: Clock, tick: Callable[[], None]) -> None:
        self._clock = clock
        self._tick = tick
        self._handle: asyncio.TimerHandle | None = None
        self._at_ns = 0

    def set(self, at_ns: int) -> None:
        """Ask for a call at `at_ns`; an earlier one that is still to come is kept."""
        now_ns = self._clock.now_ns()
        if self._handle is not None:
            if now_ns < self._at_ns <= at_ns:
                return
            self._handle.cancel()
        self._at_ns = at_ns
        delay_s = max(0.0, (at_ns - now_ns) / 1e9)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def stop(self) -> None:
        """Call no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._tick()
