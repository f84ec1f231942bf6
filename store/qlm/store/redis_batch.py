"""Calls of one script gathered into round trips: what is asked while one is under way goes with the next.

Under load a call costs a share of a round trip instead of one of its own; without load nothing waits.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from qlm.store.redis_scripts import Argument, Scripts

BATCH_MAX: Final = 128
"""Calls per round trip: Redis serves others between the calls, but this client waits for all of them."""


class Batched:
    """Runs one script for many callers."""

    def __init__(self, scripts: Scripts, name: str) -> None:
        self._scripts = scripts
        self._name = name
        self._waiting: list[tuple[Sequence[Argument], asyncio.Future[Any]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def run(self, *arguments: Argument) -> Any:
        """Run the script once.

        Raises:
            StoreUnavailableError: As `Scripts.run`; all calls of a round trip fail together.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((arguments, answer))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                await self._send(batch)
        finally:
            self._worker = None
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting.clear()

    async def _send(self, batch: Sequence[tuple[Sequence[Argument], asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._scripts.run_each(self._name, [arguments for arguments, _ in batch])
        except Exception as error:
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
