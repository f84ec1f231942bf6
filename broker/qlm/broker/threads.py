"""Threads beside a busy event loop: interpreter switch interval, and batches of items between threads."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# An event loop with work in every turn releases the interpreter lock for a microsecond per turn (its poll
# with a timeout of zero), and takes it back before a waiting thread is awake. That thread starts to wait
# again, and gets the lock only after a whole interval without such a turn. Measured with turns of 2 ms beside
# publishers to the SQLite file: with 5 ms single publishes took up to 21 s, depending on how the scheduler
# places the threads; with 0.5 ms none took longer than 41 ms. Turns are shorter since tokens are written in
# them: with 0.5 ms a burst of 200 streams began 1.3 to 2.5 times later than before that, with 0.1 ms 0.6 to
# 1.5 times (three pairs each, on two cores with ten other busy processes).
SWITCH_INTERVAL_S: Final = 0.0001
"""Time for which a thread may keep the interpreter lock while another waits; Python's default is 5 ms."""


def share_interpreter() -> None:
    """Lower the switch interval of the process to 0.1 ms; never raise it."""
    sys.setswitchinterval(min(SWITCH_INTERVAL_S, sys.getswitchinterval()))


class Batcher(Generic[T]):
    """Collector of the items of one turn of an event loop, delivered as one list.

    Waking another thread costs a system call and contention for the interpreter lock; with thousands of
    messages a second this cost arises once per batch. For the loop's own thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> None:
        """Collect in `loop`; `deliver` receives each batch and must not block."""
        self._loop = loop
        self._deliver = deliver
        self._items: list[T] = []

    def put(self, item: T) -> None:
        """Add an item to the batch."""
        if not self._items:
            self._loop.call_soon(self.flush)
        self._items.append(item)

    def flush(self) -> None:
        """Deliver the batch now."""
        if self._items:
            items, self._items = self._items, []
            self._deliver(items)
