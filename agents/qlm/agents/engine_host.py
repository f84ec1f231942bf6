"""The engines of one instance: at most one awake, others asleep in host memory or not started.

A model swap puts the awake engine to sleep and wakes (warm) or starts (cold) the other. Starts are
serial, and an engine that fails to wake is stopped and started anew: a failed wake leaves it half mapped.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from qlm.agents.events import EngineChanged
from qlm.agents.host_memory import bed
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.ports.engine import Engine

log = logging.getLogger("qlm.agents")

ENGINE_ERRORS: Final = (EngineUnavailableError, EngineRefusedError)


class EngineUnit(Protocol):
    """One engine of one model: a supervised process, or a server somebody else runs."""

    @property
    def engine(self) -> Engine:
        """The client to talk to it."""
        ...

    async def start(self) -> None:
        """Bring it up and wait until it serves.

        Raises:
            EngineUnavailableError: It did not come up; the message says why.
        """
        ...

    async def stop(self) -> None:
        """Bring it down, for good or until the next start."""
        ...

    async def close(self) -> None:
        """Let go of it for good; one that is ours is stopped."""
        ...

    async def died(self) -> str:
        """Wait until it goes down by itself; return why."""
        ...


class ModelHost:
    """The engines of one instance, by model.

    Args:
        units: One per model the instance may serve.
        weights_bytes: Size of each model's weights, for the host-memory budget.
        host_memory_bytes: Memory for sleeping models.
    """

    def __init__(
        self,
        units: Mapping[ModelId, EngineUnit],
        *,
        weights_bytes: Mapping[ModelId, int],
        host_memory_bytes: int,
    ) -> None:
        self._units = units
        self._weights_bytes = weights_bytes
        self._host_memory_bytes = host_memory_bytes
        self._on_change: Callable[[EngineChanged], None] = _ignore
        self._states = dict.fromkeys(units, EngineState.COLD)
        self._awake: ModelId | None = None
        self._warm: list[ModelId] = []
        self._watchers: dict[ModelId, asyncio.Task[None]] = {}
        self._swapping = asyncio.Lock()

    def subscribe(self, on_change: Callable[[EngineChanged], None]) -> None:
        """Tell `on_change` of every change that is not the answer to a swap."""
        self._on_change = on_change

    def engine(self) -> Engine | None:
        """Return the awake engine, if any."""
        return None if self._awake is None else self._units[self._awake].engine

    async def swap(self, model: ModelId) -> EngineChanged:
        """Make a model's engine the awake one.

        Returns:
            AWAKE with the engine's capacity, or FAILED with the reason.
        """
        async with self._swapping:
            try:
                if self._awake is not None and self._awake != model:
                    await self._put_to_sleep(self._awake)
                await self._bring_up(model)
                capacity = await self._units[model].engine.capacity()
            except ENGINE_ERRORS as error:
                await self._stop(model)
                self._states[model] = EngineState.FAILED
                return EngineChanged(model=model, state=EngineState.FAILED, error=str(error))
            self._awake = model
            return EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity)

    async def close(self) -> None:
        """Stop all engines."""
        async with self._swapping:
            for watcher in self._watchers.values():
                watcher.cancel()
            self._watchers.clear()
            self._awake = None
            for unit in self._units.values():
                await unit.close()

    async def _bring_up(self, model: ModelId) -> None:
        if self._states[model] is EngineState.ASLEEP:
            try:
                await self._units[model].engine.wake()
            except ENGINE_ERRORS as error:
                log.warning("%s did not wake (%s): starting it anew", model, error)
                await self._stop(model)
            else:
                self._warm.remove(model)
                self._states[model] = EngineState.AWAKE
                return
        if self._states[model] is not EngineState.AWAKE:
            self._states[model] = EngineState.STARTING
            await self._units[model].start()
            self._states[model] = EngineState.AWAKE
            self._watchers[model] = asyncio.get_running_loop().create_task(self._watch(model))

    async def _put_to_sleep(self, model: ModelId) -> None:
        """Keep a model warm if host memory allows, making room by the least recently used; else stop it."""
        self._awake = None
        bedding = bed(model, self._warm, self._weights_bytes, self._host_memory_bytes)
        for other in bedding.stop:
            await self._stop(other)
        state = EngineState.COLD
        if bedding.keep:
            try:
                await self._units[model].engine.sleep(level=1)
                self._warm.append(model)
                state = EngineState.ASLEEP
            except ENGINE_ERRORS as error:
                log.warning("%s did not go to sleep (%s): stopping it", model, error)
        if state is EngineState.COLD:
            await self._stop(model)
        self._states[model] = state
        self._on_change(EngineChanged(model=model, state=state))

    async def _stop(self, model: ModelId) -> None:
        if self._awake == model:
            self._awake = None
        watcher = self._watchers.pop(model, None)
        if watcher is not None:
            watcher.cancel()
        await self._units[model].stop()
        if model in self._warm:
            self._warm.remove(model)
        self._states[model] = EngineState.COLD
        self._on_change(EngineChanged(model=model, state=EngineState.COLD))

    async def _watch(self, model: ModelId) -> None:
        why = await self._units[model].died()
        if self._awake == model:
            # At once: nobody must be sent to it while it is cleared away.
            self._awake = None
        async with self._swapping:
            del self._watchers[model]
            await self._units[model].stop()
            if model in self._warm:
                self._warm.remove(model)
            self._states[model] = EngineState.FAILED
        self._on_change(EngineChanged(model=model, state=EngineState.FAILED, error=why))


def _ignore(event: EngineChanged) -> None:
    """Take no notice: nobody has subscribed yet."""
