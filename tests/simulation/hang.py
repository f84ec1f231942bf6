"""Hangs of one simulated engine, in the ways that emulated engines know."""

import asyncio

from qlm.simulator.emulation.emulator import SLOW_FACTOR, Hang
from simulation.virtual_loop import VirtualLoop


class EngineHang:
    """How one engine hangs at present.

    Attributes:
        mode: The way; `NONE` if it works.
        deaf: It ignores aborts.
        lasts: A restart does not cure it.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.mode = Hang.NONE
        self.deaf = self.lasts = False
        self._loop = loop
        self._stuck: str | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self, mode: Hang, *, deaf: bool, lasts: bool) -> None:
        """Hang from now on."""
        self.mode, self.deaf, self.lasts, self._stuck = mode, deaf or mode is Hang.HALF_CLOSED, lasts, None

    def end(self) -> None:
        """Go on as if nothing had happened."""
        self.mode, self.deaf, self.lasts = Hang.NONE, False, False
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def restarted(self) -> None:
        """End, unless it lasts: the process is a new one."""
        if not self.lasts:
            self.end()

    def slowness(self) -> float:
        """Return the factor on all durations."""
        return SLOW_FACTOR if self.mode is Hang.SLOW else 1.0

    def holds(self, call_id: str, *, admitted: bool) -> bool:
        """Return whether a generation stands still."""
        match self.mode:
            case Hang.NO_ADMISSION:
                return not admitted
            case Hang.NO_TOKENS | Hang.HALF_CLOSED:
                return True
            case Hang.ONE_STUCK:
                self._stuck = self._stuck or call_id
                return call_id == self._stuck
        return False

    def over(self) -> "asyncio.Future[None]":
        """Return a future that is done when the hang ends."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        return future
