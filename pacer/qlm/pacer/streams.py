"""Paced streams: `pace` for async iterators, `pace_sync` for plain ones, over any kind of item.

Both read their source as it comes, in a task or a thread of their own: only so is the arrival known. What was
read and not taken waits in memory. An error of the source is raised after all text before it.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from qlm.domain.shell.tasks import end_tasks
from qlm.pacer.core.items import ItemPacer, Shape
from qlm.pacer.core.pacer import Pacer

T = TypeVar("T")

NowMs = Callable[[], float]
"""A clock that never falls, milliseconds."""


def monotonic_ms() -> float:
    """Return the time of the monotonic clock."""
    return time.monotonic() * 1000


async def pace(
    source: AsyncIterable[T], shape: Shape[T], pacer: Pacer, *, now_ms: NowMs = monotonic_ms
) -> AsyncIterator[T]:
    """Yield the items of a stream in their order, their text paced.

    Args:
        source: The stream.
        shape: Way to read and write its items (`items.TEXT` for plain text).
        pacer: A new pacer. The caller may flush it, or let text pass through it; both act with the next item.
        now_ms: The clock.
    """
    items = ItemPacer(pacer, shape)
    arrived = asyncio.Event()

    async def read() -> None:
        try:
            async for item in source:
                items.push(item, now_ms())
                arrived.set()
        except BaseException:
            items.flush(now_ms())
            raise
        finally:
            items.end(now_ms())
            arrived.set()

    reading = asyncio.create_task(read())
    try:
        while not items.done:
            arrived.clear()
            for item in items.release(now_ms()):
                yield item
            if not items.done:
                await _wait(arrived, items.wake_at, now_ms)
        await reading
    finally:
        await end_tasks([reading])


async def _wait(arrived: asyncio.Event, wake_at_ms: float | None, now_ms: NowMs) -> None:
    timeout_s = None if wake_at_ms is None else max(0.0, (wake_at_ms - now_ms()) / 1000)
    # `asyncio.wait_for` before Python 3.12 swallows a cancellation that arrives together with the text.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await arrived.wait()


def pace_sync(
    source: Iterable[T], shape: Shape[T], pacer: Pacer, *, now_ms: NowMs = monotonic_ms
) -> Iterator[T]:
    """Yield the items of a stream in their order, their text paced; a thread reads the source.

    If the caller stops early, the thread ends with the next item and closes the source.

    Args:
        source: The stream.
        shape: Way to read and write its items (`items.TEXT` for plain text).
        pacer: A new pacer.
        now_ms: The clock.
    """
    items = ItemPacer(pacer, shape)
    arrivals: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    errors: list[BaseException] = []
    stopped = threading.Event()

    def read() -> None:
        try:
            for item in source:
                if stopped.is_set():
                    break
                arrivals.put(partial(items.push, item, now_ms()))
        except BaseException as error:  # raised again by the caller's side
            errors.append(error)
            arrivals.put(partial(items.flush, now_ms()))
        finally:
            arrivals.put(partial(items.end, now_ms()))
            if stopped.is_set():
                _close(source)

    threading.Thread(target=read, daemon=True, name="qlm-pacer").start()
    try:
        while not items.done:
            yield from items.release(now_ms())
            if not items.done:
                _take(arrivals, items.wake_at, now_ms)
    finally:
        stopped.set()
    if errors:
        raise errors[0]


def _take(arrivals: queue.SimpleQueue[Callable[[], None]], wake_at_ms: float | None, now_ms: NowMs) -> None:
    """Wait for an arrival or the next due time, and take all arrivals."""
    timeout_s = None
    if wake_at_ms is not None:
        timeout_s = min(max(0.0, (wake_at_ms - now_ms()) / 1000), threading.TIMEOUT_MAX)
    try:
        arrivals.get(timeout=timeout_s)()
        while True:
            arrivals.get_nowait()()
    except queue.Empty:
        return


def _close(source: object) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()
