"""Engines of one instance: at most one awake, the others asleep in host memory or stopped.

A model swap puts the awake engine to sleep, then wakes the other (warm, or reloading its weights) or starts
it (cold). Engines start one at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from qlm.agents.core.costs.host_memory import ASLEEP_AS, HostMemory
from qlm.agents.core.events import EngineChanged, WeightsPrefetched
from qlm.domain.errors import EngineUnavailableError
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.ports.engine import Engine
from qlm.domain.shell.faults import FaultLog, text_of
from qlm.domain.shell.tasks import end_tasks
from qlm.rct_estimator.host_memory import ALL_TIERS, SwapCost

log = logging.getLogger("qlm.agents")

WATCH_AGAIN_S: Final = 1.0
"""Pause before an engine whose watch failed is watched again."""


class EngineHost(Protocol):
    """Port of the agent runner to the engines of its instance."""

    def engine(self) -> Engine | None:
        """Return the client of the awake engine, if any."""
        ...

    async def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> EngineChanged:
        """Make a model's engine the awake one.

        Args:
            model: The model to serve.
            later: Models that are served after it, in order, as far as known.

        Returns:
            AWAKE with the engine's capacity, or FAILED with the reason.
        """
        ...

    async def prefetch(self, model: ModelId) -> WeightsPrefetched:
        """Read a model's weights files into host memory before its turn, if they fit."""
        ...

    async def drop_prefetched(self, model: ModelId) -> WeightsPrefetched:
        """Release prefetched weights files."""
        ...

    async def fail(self, model: ModelId, reason: str) -> None:
        """Stop the awake engine, which makes no progress, and report it as FAILED."""
        ...

    def subscribe(self, on_change: Callable[[EngineChanged | WeightsPrefetched], None]) -> None:
        """Report every change that is not the result of a call to `on_change`."""
        ...

    async def close(self) -> None:
        """Stop all engines."""
        ...


class ManagedEngine(Protocol):
    """One engine of one model: a supervised process, or an external server."""

    @property
    def engine(self) -> Engine:
        """The client of the engine."""
        ...

    async def start(self) -> None:
        """Start the engine and wait until it serves.

        Raises:
            EngineUnavailableError: It did not start; the message says why.
        """
        ...

    async def stop(self) -> None:
        """Stop the engine until the next start."""
        ...

    def hangs(self) -> None:
        """Note that it stands still: the next stop kills it, the next start proves that it answers."""
        ...

    async def close(self) -> None:
        """Stop the engine for good and release its resources; an external server keeps running."""
        ...

    async def wait_failed(self) -> str:
        """Wait until the engine fails by itself; return the reason."""
        ...

    async def prefetch(self) -> bool:
        """Read its weights files into host memory before its next start or reload; False if it has none."""
        ...

    async def drop_prefetched(self) -> None:
        """Release what `prefetch` has read."""
        ...


class ModelHost:
    """EngineHost over one managed engine per model.

    Args:
        engines: One per model that the instance may serve.
        costs: Host memory that each sleeping model takes, and time that it saves.
        host_memory_bytes: Memory for sleeping models and prefetched weights files.
        tiers: Allowed sleep tiers.
        faults: Failures of the process.
    """

    def __init__(
        self,
        engines: Mapping[ModelId, ManagedEngine],
        *,
        costs: Mapping[ModelId, SwapCost],
        host_memory_bytes: int,
        tiers: Collection[SwapTier] = ALL_TIERS,
        faults: FaultLog | None = None,
    ) -> None:
        self._engines = engines
        self._memory = HostMemory(costs, host_memory_bytes, tiers)
        self._on_change: Callable[[EngineChanged | WeightsPrefetched], None] = lambda _: None
        self._states = dict.fromkeys(engines, EngineState.COLD)
        self._awake: ModelId | None = None
        self._failure_watches: dict[ModelId, asyncio.Task[None]] = {}
        self._swapping = asyncio.Lock()
        self._faults = faults or FaultLog()

    def subscribe(self, on_change: Callable[[EngineChanged | WeightsPrefetched], None]) -> None:
        """Report every change that is not the result of a call to `on_change`."""
        self._on_change = on_change

    def engine(self) -> Engine | None:
        """Return the client of the awake engine, if any."""
        if self._awake is None:
            return None
        try:
            return self._engines[self._awake].engine
        except EngineUnavailableError:  # it has ended, which is about to be reported
            return None

    async def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> EngineChanged:
        """Put the awake engine to sleep, and wake or start that of `model`."""
        async with self._swapping:
            try:
                if self._awake is not None and self._awake != model:
                    await self._put_to_sleep(self._awake, (model, *later))
                tier = await self._bring_up(model)
                capacity = await self._engines[model].engine.capacity()
            except Exception as error:
                await self._stop(model)
                self._states[model] = EngineState.FAILED
                return EngineChanged(model=model, state=EngineState.FAILED, error=text_of(error))
            self._awake = model
            return EngineChanged(model=model, state=EngineState.AWAKE, capacity=capacity, tier=tier)

    async def prefetch(self, model: ModelId) -> WeightsPrefetched:
        """Read a model's weights files into host memory before its turn, if they fit."""
        # Only the files: a second engine cannot start while the weights and KV cache of the awake one fill
        # the accelerator. Reading the files is the part of a start that needs host memory only.
        if self._awake == model or not self._memory.can_prefetch(model):
            return self._prefetched(model, refused=True)
        self._memory.fetched(model)
        try:
            complete = await self._engines[model].prefetch()
        except Exception as error:
            log.warning("the weights of %s cannot be read beforehand: %s", model, text_of(error))
            complete = False
        if complete and model in self._memory.prefetched:
            return self._prefetched(model)
        await self._drop(model)
        return self._prefetched(model, refused=True)

    async def drop_prefetched(self, model: ModelId) -> WeightsPrefetched:
        """Release prefetched weights files."""
        await self._drop(model)
        return self._prefetched(model)

    async def close(self) -> None:
        """Stop all engines."""
        async with self._swapping:
            await end_tasks(self._failure_watches.values())
            self._failure_watches.clear()
            self._awake = None
            for model, engine in self._engines.items():
                await self._ended(model, engine.close())

    async def _bring_up(self, model: ModelId) -> SwapTier:
        """Wake or start an engine; return the tier from which it came."""
        if self._states[model] is EngineState.AWAKE:
            return SwapTier.WARM
        tier = self._memory.tier(model)
        if tier is not SwapTier.COLD:
            try:
                await self._engines[model].engine.wake()
            except Exception as error:
                # A failed wake leaves the engine half mapped: only a new process can serve.
                log.warning("%s did not wake (%s): restarting it", model, text_of(error))
                await self._stop(model)
                tier = SwapTier.COLD
        if tier is SwapTier.COLD:
            self._states[model] = EngineState.STARTING
            await self._engines[model].start()
            watch = asyncio.get_running_loop().create_task(self._watch_failure(model))
            self._failure_watches[model] = watch
        self._memory.gone(model)
        self._states[model] = EngineState.AWAKE
        if model in self._memory.prefetched:
            await self._drop(model)
            self._on_change(self._prefetched())
        return tier

    async def _put_to_sleep(self, model: ModelId, later: Sequence[ModelId]) -> None:
        """Put a model to sleep in the tier that `host_memory` plans, after evicting what the plan names."""
        self._awake = None
        plan = self._memory.plan_sleep(model, later)
        # Record it before it is done: a concurrent prefetch must not take the memory.
        self._memory.slept(model, plan.tier)
        for other in plan.drop:
            await self._drop(other)
        if plan.drop:
            self._on_change(self._prefetched())
        for other in plan.stop:
            await self._stop(other)
        tier = plan.tier
        if tier is not SwapTier.COLD:
            try:
                await self._engines[model].engine.sleep(level=1 if tier is SwapTier.WARM else 2)
            except Exception as error:
                log.warning("%s did not go to sleep (%s): stopping it", model, text_of(error))
                tier = SwapTier.COLD
        if tier is SwapTier.COLD:
            await self._stop(model)
            return
        self._states[model] = ASLEEP_AS[tier]
        self._on_change(EngineChanged(model=model, state=ASLEEP_AS[tier]))

    async def _drop(self, model: ModelId) -> None:
        self._memory.dropped(model)
        try:
            await self._engines[model].drop_prefetched()
        except Exception as error:  # it costs memory that the kernel takes back, and no swap
            self._faults.note(log, error, "the prefetched weights of %s are not dropped", model)

    def _prefetched(self, requested: ModelId | None = None, *, refused: bool = False) -> WeightsPrefetched:
        return WeightsPrefetched(models=tuple(self._memory.prefetched), requested=requested, refused=refused)

    def _not_awake(self, model: ModelId) -> None:
        """Let it be the awake one no more, if it is."""
        if self._awake == model:
            self._awake = None

    async def _stop(self, model: ModelId) -> None:
        self._not_awake(model)
        watch = self._failure_watches.pop(model, None)
        if watch is not None:
            await end_tasks([watch])
        await self._end(model)
        self._memory.gone(model)
        self._states[model] = EngineState.COLD
        self._on_change(EngineChanged(model=model, state=EngineState.COLD))

    async def _end(self, model: ModelId) -> None:
        await self._ended(model, self._engines[model].stop())

    async def _ended(self, model: ModelId, ending: Awaitable[None]) -> None:
        try:
            await ending
        except Exception:  # the others are to end all the same
            log.exception("the engine of %s was not stopped in order", model)

    async def fail(self, model: ModelId, reason: str) -> None:
        """Stop the awake engine, which makes no progress, and report it as FAILED."""
        if self._awake != model:
            return
        self._engines[model].hangs()
        await end_tasks([self._failure_watches[model]] if model in self._failure_watches else [])
        await self._fail(model, reason)

    async def _watch_failure(self, model: ModelId) -> None:
        await self._fail(model, await self._failure(model))

    async def _failure(self, model: ModelId) -> str:
        """Wait until an engine has failed, whatever the wait meets; return the reason."""
        while True:
            try:
                return await self._engines[model].wait_failed()
            except Exception as error:
                self._faults.note(log, error, "the end of the engine of %s would not be noticed", model)
                await asyncio.sleep(WATCH_AGAIN_S)

    async def _fail(self, model: ModelId, reason: str) -> None:
        # Before the lock is taken: no generation may start on it meanwhile.
        self._not_awake(model)
        async with self._swapping:
            self._not_awake(model)  # a swap may have made it the awake one before it let go of the lock
            self._failure_watches.pop(model, None)
            await self._end(model)
            self._memory.gone(model)
            self._states[model] = EngineState.FAILED
        self._on_change(EngineChanged(model=model, state=EngineState.FAILED, error=reason))
