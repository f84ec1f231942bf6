"""Waits of answers, whose tokens are there, for a render tier that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from qlm.gateway.api.errors import ApiError
from qlm.gateway.render.client import UNAVAILABLE

T = TypeVar("T")

PATIENCE_S: Final = 90.0
"""Time that an answer waits for a render tier that is away; then it ends with an error. Its log is kept.

`vllm launch render` takes 10 to 30 s to start, on a busy machine longer.
"""

RETRY_S: Final = 0.25


class Patience:
    """Wait of one answer for a render tier that is away, from the first failure on."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._give_up_s: float | None = None

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `work`; None, after a pause, if the render tier is away.

        Raises:
            ApiError: The render tier fails, or has stayed away.
        """
        now_s = asyncio.get_running_loop().time()
        try:
            made = await work()
        except ApiError as error:
            if self._give_up_s is None:
                self._give_up_s = now_s + self._patience_s
            if error.code != UNAVAILABLE or now_s >= self._give_up_s:
                raise
            await asyncio.sleep(RETRY_S)
            return None
        self._give_up_s = None
        return made


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`; a render tier that restarts is waited for.

    Raises:
        ApiError: The render tier fails, or stays away.
    """
    patience = Patience()
    while (made := await patience.attempt(work)) is None:
        pass
    return made
