"""In-process subscriptions: an announcement reaches every open iterator of its topic."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, TypeVar
from weakref import ref

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

    def put(self, items: Sequence[T]) -> None:
        """Add the announcements of one operation."""
        if len(self._items) + len(items) <= self._backlog_max:
            self._items += items
        else:
            for item in items:
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


class Readers(Generic[T]):
    """Open subscriptions to one topic; one that no iterator has any more ends by itself."""

    def __init__(self) -> None:
        # Read far more often than changed: iterating over a WeakSet takes a dozen calls.
        self._refs: tuple[ref[Subscription[T]], ...] = ()

    def __len__(self) -> int:
        return len(self._refs)

    def open(self, backlog_max: int) -> Subscription[T]:
        """Open a subscription, which lasts as long as the caller keeps it."""
        opened = Subscription[T](backlog_max)
        self._refs = (*self._refs, ref(opened, self._forget))
        return opened

    def put(self, items: Sequence[T]) -> None:
        """Send the announcements of one operation to each."""
        for each in self._refs:
            if (reader := each()) is not None:
                reader.put(items)

    def close(self) -> None:
        """End the iterations of all."""
        for each in self._refs:
            if (reader := each()) is not None:
                reader.close()

    def _forget(self, gone: "ref[Subscription[T]]") -> None:
        self._refs = tuple(each for each in self._refs if each is not gone)


class Feeds:
    """Subscriptions of one in-process store."""

    def __init__(self, backlog_max: int) -> None:
        self._backlog_max = backlog_max
        self._outputs: dict[GatewayId, Readers[OutputSlice]] = {}
        self._notices: dict[InstanceId, Readers[InstanceNotice]] = {}
        self._wakeups = Readers[str]()

    def announce(self, effects: Effects) -> None:
        """Send the announcements of one operation to their readers."""
        if effects.outputs:
            parts: dict[GatewayId, list[OutputSlice]] = {}
            for watcher, part in effects.outputs:
                parts.setdefault(watcher, []).append(part)
            for watcher, of_watcher in parts.items():
                if (outputs := self._outputs.get(watcher)) is not None:
                    outputs.put(of_watcher)
        for instance, notice in effects.notices:
            if (notices := self._notices.get(instance)) is not None:
                notices.put((notice,))
        if effects.wakeups:
            self._wakeups.put(effects.wakeups)

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Open a subscription to the output announced to one gateway."""
        return _batches(self._outputs.setdefault(watcher, Readers()).open(self._backlog_max))

    def notices(
        self, instance: InstanceId, standing: Callable[[], Iterable[InstanceNotice]]
    ) -> AsyncIterator[InstanceNotice]:
        """Open a subscription to the notices of an instance; `standing` returns those to begin with."""
        opened = self._notices.setdefault(instance, Readers()).open(self._backlog_max)
        return _items(opened, standing)

    def wakeups(self) -> AsyncIterator[str]:
        """Open a subscription to the wakeups of controllers."""
        return _items(self._wakeups.open(self._backlog_max), lambda: (WAKE_SUBSCRIBED,))

    def close(self) -> None:
        """End all iterations."""
        for outputs in self._outputs.values():
            outputs.close()
        for notices in self._notices.values():
            notices.close()
        self._wakeups.close()


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
