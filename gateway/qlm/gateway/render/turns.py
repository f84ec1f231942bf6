"""Turns of streams at a render tier: so many calls at once, first pieces of answers before others."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

TURNS: Final = 4
"""Calls at once. A tier is one process, which more calls would only make slower; a few hide the way there."""


class Turns:
    """Bounded calls, in the order of arrival, but first pieces of answers before others."""

    def __init__(self, count: int = TURNS) -> None:
        self._free = count
        self._first: deque[asyncio.Future[None]] = deque()
        self._later: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Number of those that wait for a turn."""
        return sum(not turn.done() for turn in (*self._first, *self._later))

    @asynccontextmanager
    async def one(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for a turn, and have it while inside."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(self._first if first else self._later)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the turn just then
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        for waiting in (self._first, self._later):
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
