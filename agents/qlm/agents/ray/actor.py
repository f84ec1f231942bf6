"""The actor: one agent inside a worker process of Ray.

Ray keeps nothing of ours. An actor that Ray starts again begins like any other: it looks for engines left
over on its machine, and what its former life held comes back from broker and store.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

log = logging.getLogger("qlm.agents")

Work = Callable[[], Coroutine[Any, Any, None]]
"""Runs an agent until it is drained, as `qlm agent` does; pickled, so a function of a module or a partial."""

DEFECT_PAUSE_S: Final = 1.0
"""Before a process ends itself: Ray starts the next at once."""


class AgentActor:
    """Runs one agent from its creation on.

    Args:
        work: The agent.
        recipe: What the agent was made from; another one asks for another actor.
    """

    def __init__(self, work: Work, recipe: str) -> None:
        self._recipe = recipe
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def about(self) -> tuple[str, int]:
        """Return the recipe, none if the agent has ended, and the id of this process on its machine."""
        return "" if self._task.done() else self._recipe, os.getpid()

    async def drained(self) -> None:
        """Wait until the agent has ended because it was drained."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """End the agent and its engines at once; its work returns to the queue."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, work: Work) -> None:
        try:
            await work()
        except Exception:
            # A defect, not a condition: end loudly instead of being there without an agent.
            log.exception("agent failed; its process ends, and Ray starts another")
            await asyncio.sleep(DEFECT_PAUSE_S)
            os._exit(1)
