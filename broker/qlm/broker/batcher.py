"""Hands items from one event loop to another thread, with one wake-up per turn of the loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Collects what callbacks of one turn of an event loop put, and passes it on as one list.

    Waking another thread costs a system call and a fight for the interpreter lock; at thousands of
    messages a second that is paid once per batch. To be used in the loop's own thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> None:
        """Collect in `loop`; `deliver` takes each batch and must not block."""
        self._loop = loop
        self._deliver = deliver
        self._items: list[T] = []

    def put(self, item: T) -> None:
        """Pass an item on, after those put before it."""
        if not self._items:
            self._loop.call_soon(self.flush)
        self._items.append(item)

    def flush(self) -> None:
        """Pass on now what has been put so far."""
        if self._items:
            items, self._items = self._items, []
            self._deliver(items)
