"""In-process subscriptions: an announcement reaches every open iterator of its topic."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, TypeVar
from weakref import WeakSet

from qlm.domain.ids import GatewayId, InstanceId
from qlm.domain.notices import InstanceNotice
from qlm.domain.output import OutputSlice
from qlm.store.core.effects import WAKE_SUBSCRIBED, Effects

T = TypeVar("T")


class Subscription(Generic[T]):
    """Announcements to one reader. A reader that is too slow loses its backlog and is notified of that."""

    def __init__(self, backlog_max: int) -> None:
        self._backlog_max = backlog_max
        self._items: list[T] = []
        self._missed = True
        self._closed = False
        self._ready = asyncio.Event()
        self._ready.set()

    def put(self, item: T) -> None:
        """Add an announcement."""
        if len(self._items) >= self._backlog_max:
            self._items.clear()
            self._missed = True
        self._items.append(item)
        self._ready.set()

    def close(self) -> None:
        """End the reader's iteration."""
        self._closed = True
        self._ready.set()

    async def take(self) -> tuple[bool, list[T]] | None:
        """Wait for announcements.

        Returns:
            True if earlier ones were lost, and the announcements; None when closed.
        """
        await self._ready.wait()
        if self._closed:
            return None
        self._ready.clear()
        taken = (self._missed, self._items)
        self._missed, self._items = False, []
        return taken


class Feeds:
    """Subscriptions of one in-process store."""

    def __init__(self, backlog_max: int) -> None:
        self._backlog_max = backlog_max
        self._outputs: dict[GatewayId, WeakSet[Subscription[OutputSlice]]] = {}
        self._notices: dict[InstanceId, WeakSet[Subscription[InstanceNotice]]] = {}
        self._wakeups: WeakSet[Subscription[str]] = WeakSet()

    def announce(self, effects: Effects) -> None:
        """Send the announcements of one operation to their readers."""
        last, readers = None, list[Subscription[OutputSlice]]()
        for watcher, part in effects.outputs:
            if watcher != last:  # most often all slices of an operation are for one gateway
                last, readers = watcher, list(self._outputs.get(watcher, ()))
            for outputs in readers:
                outputs.put(part)
        for instance, notice in effects.notices:
            for notices in self._notices.get(instance, ()):
                notices.put(notice)
        for reason in effects.wakeups:
            for wakeups in self._wakeups:
                wakeups.put(reason)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Open a subscription to the output announced to one gateway."""
        opened = Subscription[OutputSlice](self._backlog_max)
        self._outputs.setdefault(watcher, WeakSet()).add(opened)
        return _batches(opened)

    def notices(
        self, instance: InstanceId, standing: Callable[[], Iterable[InstanceNotice]]
    ) -> AsyncIterator[InstanceNotice]:
        """Open a subscription to the notices of an instance; `standing` returns those to begin with."""
        opened = Subscription[InstanceNotice](self._backlog_max)
        self._notices.setdefault(instance, WeakSet()).add(opened)
        return _items(opened, standing)

    def wakeups(self) -> AsyncIterator[str]:
        """Open a subscription to the wakeups of controllers."""
        opened = Subscription[str](self._backlog_max)
        self._wakeups.add(opened)
        return _items(opened, lambda: (WAKE_SUBSCRIBED,))

    def close(self) -> None:
        """End all iterations."""
        for outputs in self._outputs.values():
            for reader in outputs:
                reader.close()
        for notices in self._notices.values():
            for listener in notices:
                listener.close()
        for sleeper in self._wakeups:
            sleeper.close()


async def _batches(opened: Subscription[T]) -> AsyncIterator[Sequence[T]]:
    while (taken := await opened.take()) is not None:
        missed, items = taken
        if missed:
            yield ()
        if items:
            yield items


async def _items(opened: Subscription[T], standing: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
    while (taken := await opened.take()) is not None:
        missed, items = taken
        # Equal announcements in one batch count once.
        for item in dict.fromkeys((*(standing() if missed else ()), *items)):
            yield item
