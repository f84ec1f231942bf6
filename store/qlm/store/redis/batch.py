"""Batching of script calls: calls made during a round trip go together with the next one.

Under load a call costs a share of a round trip; without load no call waits.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from qlm.store.redis.scripts import Argument, Scripts

BATCH_MAX: Final = 128
"""Calls per round trip: Redis serves other clients in between, but this one waits for the whole batch."""


class Batched:
    """One script, run for many callers."""

    def __init__(self, scripts: Scripts, name: str) -> None:
        self._scripts = scripts
        self._name = name
        self._waiting: list[tuple[Sequence[Argument], asyncio.Future[Any]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def run(self, *arguments: Argument) -> Any:
        """Run the script once.

        Raises:
            StoreUnavailableError: As `Scripts.run`.
            StoreDataError: This call found damaged keys.
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
            answers = await self._scripts.try_each(self._name, [arguments for arguments, _ in batch])
        except Exception as error:
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)
