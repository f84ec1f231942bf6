"""An emulated engine behind the engine port, in the virtual time of a deterministic loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.emulation.command import make_engine
from qlm.simulator.emulation.emulator import Emulator
from qlm.simulator.emulation.options import EmulateOptions
from qlm.simulator.engine.residency import ResidentEngine
from simulation.virtual_loop import VirtualLoop

T = TypeVar("T")

WAY_S = 0.0004
"""Time of a message between client and engine."""


class VirtualEngine:
    """Engine of a profile; its clock is that of the running loop."""

    def __init__(self, profile: Profile, *, batched_tokens_max: int | None = None) -> None:
        self.async_scheduling = profile.async_scheduling
        wanted = batched_tokens_max or profile.batched_tokens_max
        options = EmulateOptions(model="m", accelerator="X", batched_tokens_max=wanted)
        self._emulator = Emulator(
            make_engine(options, profile), ResidentEngine(profile), time_scale=1.0, clock_ns=self.now_ns
        )

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        await asyncio.sleep(WAY_S)
        stream = self._emulator.submit(call.call_id, lambda call_id, *_: replace(call, call_id=call_id))
        try:
            finish = None
            while finish is None:
                emissions = await stream.get()
                await asyncio.sleep(WAY_S)
                finish = emissions[-1].finish
                ids = tuple(token for emission in emissions for token in emission.token_ids)
                yield EngineChunk(token_ids=ids, finish=finish)
        finally:
            self._emulator.abort_stream(stream)

    async def abort(self, call_ids: Sequence[str]) -> None:
        self._emulator.abort(call_ids)

    async def capacity(self) -> EngineCapacity:
        return self._emulator.engine.capacity

    async def healthy(self) -> bool:
        return True

    async def sleep(self, level: int = 1) -> None:
        await self._emulator.sleep(level, keep=False)

    async def wake(self) -> None:
        await self._emulator.wake()

    async def close(self) -> None:
        self._emulator.close()

    async def run(self) -> None:
        await self._emulator.run()


def in_virtual_time(
    profile: Profile,
    scenario: Callable[[VirtualEngine], Awaitable[T]],
    *,
    batched_tokens_max: int | None = None,
) -> T:
    """Run a scenario against an engine of the profile; waits take no real time."""

    async def body() -> T:
        engine = VirtualEngine(profile, batched_tokens_max=batched_tokens_max)
        serving = asyncio.ensure_future(engine.run())
        try:
            return await scenario(engine)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(body())
    finally:
        loop.close()
