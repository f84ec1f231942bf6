"""The engines of one instance: at most one awake, others asleep in host memory or not started.

A model swap puts the awake engine to sleep and wakes (warm, or reloading its weights) or starts (cold) the
other. Starts are serial, and an engine that fails to wake is stopped and started anew: a failed wake leaves
it half mapped.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from qlm.agents.events import EngineChanged, HeldAhead
from qlm.agents.host_memory import ALL_TIERS, ASLEEP_AS, HostMemory, SwapCost
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
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

    async def fetch(self) -> bool:
        """Read its weights files into host memory ahead of its next start or reload; False if it has none."""
        ...

    async def let_go(self) -> None:
        """Let go of what `fetch` brought."""
        ...


class ModelHost:
    """The engines of one instance, by model.

    Args:
        units: One per model the instance may serve.
        costs: What each model holds and saves while it sleeps.
        host_memory_bytes: Memory for sleeping models and for weights files held ahead of their turn.
        tiers: In which models may sleep.
    """

    def __init__(
        self,
        units: Mapping[ModelId, EngineUnit],
        *,
        costs: Mapping[ModelId, SwapCost],
        host_memory_bytes: int,
        tiers: Collection[SwapTier] = ALL_TIERS,
    ) -> None:
        self._units = units
        self._memory = HostMemory(costs, host_memory_bytes, tiers)
        self._on_change: Callable[[EngineChanged | HeldAhead], None] = _ignore
        self._states = dict.fromkeys(units, EngineState.COLD)
        self._awake: ModelId | None = None
        self._watchers: dict[ModelId, asyncio.Task[None]] = {}
        self._swapping = asyncio.Lock()

    def subscribe(self, on_change: Callable[[EngineChanged | HeldAhead], None]) -> None:
        """Tell `on_change` of every change that is not the answer to a swap."""
        self._on_change = on_change

    def engine(self) -> Engine | None:
        """Return the awake engine, if any."""
        return None if self._awake is None else self._units[self._awake].engine

    async def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> EngineChanged:
        """Make a model's engine the awake one.

        Args:
            model: Whose engine.
            later: Models whose turns come after it, in order, as far as that is known.

        Returns:
            AWAKE with the engine's capacity, or FAILED with the reason.
        """
        async with self._swapping:
            try:
                if self._awake is not None and self._awake != model:
                    await self._put_to_sleep(self._awake, (model, *later))
                tier = await self._bring_up(model)
                capacity = await self._units[model].engine.capacity()
            except ENGINE_ERRORS as error:
                await self._stop(model)
                self._states[model] = EngineState.FAILED
                return EngineChanged(model=model, state=EngineState.FAILED, error=str(error))
            self._awake = model
            return EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity, tier=tier)

    async def warm(self, model: ModelId) -> HeldAhead:
        """Hold a model's weights files in host memory ahead of its turn, if there is room.

        An engine cannot be started beside the awake one, whose weights and KV cache fill the accelerator;
        reading the files is the part of a start that needs host memory only.
        """
        if self._awake == model or not self._memory.has_room_ahead(model):
            return self._ahead(model, refused=True)
        self._memory.fetched(model)
        came = await self._units[model].fetch()
        if came and model in self._memory.ahead:
            return self._ahead(model)
        await self._drop(model)
        return self._ahead(model, refused=True)

    async def cool(self, model: ModelId) -> HeldAhead:
        """Let go of weights files held ahead."""
        await self._drop(model)
        return self._ahead(model)

    async def close(self) -> None:
        """Stop all engines."""
        async with self._swapping:
            for watcher in self._watchers.values():
                watcher.cancel()
            self._watchers.clear()
            self._awake = None
            for unit in self._units.values():
                await unit.close()

    async def _bring_up(self, model: ModelId) -> SwapTier:
        """Wake or start an engine; return from which tier it came."""
        if self._states[model] is EngineState.AWAKE:
            return SwapTier.WARM
        tier = self._memory.tier(model)
        if tier is not SwapTier.COLD:
            try:
                await self._units[model].engine.wake()
            except ENGINE_ERRORS as error:
                log.warning("%s did not wake (%s): starting it anew", model, error)
                await self._stop(model)
                tier = SwapTier.COLD
        if tier is SwapTier.COLD:
            self._states[model] = EngineState.STARTING
            await self._units[model].start()
            self._watchers[model] = asyncio.get_running_loop().create_task(self._watch(model))
        self._memory.gone(model)
        self._states[model] = EngineState.AWAKE
        if model in self._memory.ahead:
            await self._drop(model)
            self._on_change(self._ahead())
        return tier

    async def _put_to_sleep(self, model: ModelId, coming: Sequence[ModelId]) -> None:
        """Let a model sleep in the tier that `host_memory` decides, after what makes room for it."""
        self._awake = None
        bedding = self._memory.bed(model, coming)
        # Noted before it is so: files read ahead meanwhile must not take the room.
        self._memory.slept(model, bedding.tier)
        for other in bedding.drop:
            await self._drop(other)
        if bedding.drop:
            self._on_change(self._ahead())
        for other in bedding.stop:
            await self._stop(other)
        tier = bedding.tier
        if tier is not SwapTier.COLD:
            try:
                await self._units[model].engine.sleep(level=1 if tier is SwapTier.WARM else 2)
            except ENGINE_ERRORS as error:
                log.warning("%s did not go to sleep (%s): stopping it", model, error)
                tier = SwapTier.COLD
        if tier is SwapTier.COLD:
            await self._stop(model)
            return
        self._states[model] = ASLEEP_AS[tier]
        self._on_change(EngineChanged(model=model, state=ASLEEP_AS[tier]))

    async def _drop(self, model: ModelId) -> None:
        self._memory.dropped(model)
        await self._units[model].let_go()

    def _ahead(self, answered: ModelId | None = None, *, refused: bool = False) -> HeldAhead:
        return HeldAhead(models=tuple(self._memory.ahead), answered=answered, refused=refused)

    async def _stop(self, model: ModelId) -> None:
        if self._awake == model:
            self._awake = None
        watcher = self._watchers.pop(model, None)
        if watcher is not None:
            watcher.cancel()
        await self._units[model].stop()
        self._memory.gone(model)
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
            self._memory.gone(model)
            self._states[model] = EngineState.FAILED
        self._on_change(EngineChanged(model=model, state=EngineState.FAILED, error=why))


def _ignore(event: EngineChanged | HeldAhead) -> None:
    """Take no notice: nobody has subscribed yet."""
