"""Ray actor that runs one agent in a worker process of Ray.

The actor keeps no state in Ray. When Ray restarts it, it starts like any other agent: it kills orphaned
engine processes on its machine, and gets the requests of its predecessor back from broker and store.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from qlm.domain.shell.tasks import end_tasks

log = logging.getLogger("qlm.agents")

Work = Callable[[], Coroutine[Any, Any, None]]
"""Runs an agent until it is drained, as `qlm agent` does; pickled, so a function of a module or a partial."""

FAILURE_PAUSE_S: Final = 1.0
"""Pause before a failed process exits: Ray restarts it at once."""

STOP_GRACE_S: Final = 60.0
"""Time for the agent to return its requests and to stop its engines."""


class AgentActor:
    """Runs one agent from its creation on.

    Its methods are called by supervisors of other releases, too: their names and results must not change.

    Args:
        config_hash: Hash of the configuration that the agent was created from; another hash requires another
            actor.
    """

    def __init__(self, work: Work, config_hash: str) -> None:
        self._config_hash = config_hash
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def about(self) -> tuple[str, int]:
        """Return the configuration's hash, empty once the agent has ended, and the id of this process."""
        return "" if self._task.done() else self._config_hash, os.getpid()

    async def drained(self) -> None:
        """Wait until the agent has ended because it was drained."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop the agent and its engines at once; its requests return to the queue."""
        await end_tasks([self._task], grace_s=STOP_GRACE_S)

    async def _run(self, work: Work) -> None:
        try:
            await work()
        except Exception:
            # A defect: exit, rather than keep a process without an agent.
            log.exception("agent failed; its process ends, and Ray starts another")
            await asyncio.sleep(FAILURE_PAUSE_S)
            os._exit(1)
