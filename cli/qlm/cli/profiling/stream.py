"""The answer to one request, with the arrival time of each token."""

import asyncio
from collections.abc import Callable

from qlm.domain.errors import EngineUnavailableError
from qlm.domain.ports.engine import Engine, EngineCall
from qlm.domain.shell.tasks import end_tasks


class Stream:
    """A request in an engine; `arrivals` grows as its tokens come."""

    def __init__(self, engine: Engine, call: EngineCall, clock_ns: Callable[[], int]) -> None:
        """Submit the request."""
        self.arrivals: list[tuple[int, int]] = []
        self._engine = engine
        self._call = call
        self._clock_ns = clock_ns
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._receive())

    @property
    def received(self) -> int:
        """Tokens received."""
        return self.arrivals[-1][1] if self.arrivals else 0

    @property
    def tokens_max(self) -> int:
        """Tokens of the whole answer."""
        return self._call.sampling.max_tokens

    async def until(self, tokens: int) -> None:
        """Wait for this many tokens.

        Raises:
            EngineUnavailableError: The answer ended before.
        """
        while self.received < tokens:
            if self._task.done():
                await self._task
                raise EngineUnavailableError(
                    f"answer is '{self.received} tokens'; expected {tokens} tokens; it ended early"
                )
            self._news.clear()
            await self._news.wait()

    async def end(self) -> None:
        """Wait for the end of the answer."""
        await self._task

    async def stop(self) -> None:
        """Abort the request if it runs, and wait for its end."""
        await end_tasks([self._task])
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _receive(self) -> None:
        try:
            async for chunk in self._engine.generate(self._call):
                if chunk.token_ids:
                    self.arrivals.append((self._clock_ns(), self.received + len(chunk.token_ids)))
                    self._news.set()
        finally:
            self._news.set()
