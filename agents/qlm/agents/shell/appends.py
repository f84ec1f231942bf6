"""Writes of an agent to output logs: at once where the store can, else in a task each."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from qlm.agents.core.events import Appended
from qlm.domain.actions import Append
from qlm.domain.ids import InstanceId
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.agents")


class Appends:
    """Carries out the writes of one agent.

    Args:
        instance: Its instance.
        store: The shared state.
        faults: Failures of the process.
        post: Receives the results as events, of a write that is done at once before `start` returns.
        spawn: Starts a task that ends with the agent.
    """

    def __init__(
        self,
        instance: InstanceId,
        store: AgentStore,
        faults: FaultLog,
        post: Callable[[Appended], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._instance = instance
        self._store = store
        self._faults = faults
        self._post = post
        self._spawn = spawn

    def start(self, action: Append) -> None:
        """Write entries, or begin to."""
        try:
            results = self._store.append_now(action.entries)
        except Exception as error:
            self._failed(action, error)
        else:
            if results is None:
                self._spawn(self._append(action))
            else:
                self._post(Appended(entries=action.entries, results=tuple(results)))

    async def _append(self, action: Append) -> None:
        try:
            results = await self._store.append(action.entries)
        except Exception as error:
            self._failed(action, error)
        else:
            self._post(Appended(entries=action.entries, results=tuple(results)))

    def _failed(self, action: Append, error: Exception) -> None:
        self._faults.note(log, error, "%s: output log not written", self._instance)
        self._post(Appended(entries=action.entries, results=None))
