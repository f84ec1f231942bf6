"""A pushed generation as an iterator, for readers that have a task of their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.shell.tasks import end_tasks

Push = Callable[[EngineCall, Callable[[EngineChunk], None]], Awaitable[EngineChunk | None]]


async def chunks_of(push: Push, call: EngineCall) -> AsyncIterator[EngineChunk]:
    """Iterate over a generation; closing the iterator ends it."""
    arrived: asyncio.Queue[EngineChunk | None] = asyncio.Queue()

    async def generate() -> None:
        try:
            last = await push(call, arrived.put_nowait)
            if last is not None:
                arrived.put_nowait(last)
        finally:
            arrived.put_nowait(None)

    generating = asyncio.create_task(generate())
    try:
        while (chunk := await arrived.get()) is not None:
            yield chunk
        await generating
    finally:
        await end_tasks([generating])
