"""Group commit: operations that come while a journal write is under way share the next one."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.ports.journal import Journal

Changes = Mapping[str, bytes | None]
"""New values by key; None deletes."""

RETRY_S: Final = 1.0
"""Pause before a failed write is tried again."""


@dataclass(slots=True, eq=False)
class _Batch:
    written: asyncio.Future[None]
    changes: dict[str, bytes | None] = field(default_factory=dict)
    announcements: list[Callable[[], None]] = field(default_factory=list)
    ids: set[RequestId] = field(default_factory=set)
    durable: bool = False


class JournalWriter:
    """Writes to a journal in the order of the calls, and has changes announced once they are written.

    A failed write is tried again until it succeeds, since the state in process is ahead of the journal;
    its callers wait. Meanwhile `check` refuses further changes, so that the two drift no further.
    """

    def __init__(self, journal: Journal, *, retry_s: float = RETRY_S) -> None:
        self._journal = journal
        self._retry_s = retry_s
        self._next: _Batch | None = None
        self._unwritten: dict[RequestId, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closing = asyncio.Event()

    def check(self) -> None:
        """Refuse to go on while the journal cannot be written, or after `close`.

        Raises:
            StoreUnavailableError: So it is.
        """
        if self._failure is not None:
            raise StoreUnavailableError(f"the journal cannot be written: {self._failure}") from self._failure
        if self._closing.is_set():
            raise StoreUnavailableError("the store is closed")

    async def write(
        self, changes: Changes, announce: Callable[[], None], ids: Iterable[RequestId], *, durable: bool
    ) -> None:
        """Write changes that concern some requests, then announce; a cancelled caller stops neither.

        Raises:
            StoreUnavailableError: The store was closed before the journal could be written.
        """
        batch = self._next or _Batch(asyncio.get_running_loop().create_future())
        self._next = batch
        batch.changes.update(changes)
        batch.announcements.append(announce)
        batch.durable |= durable
        for id in ids:
            batch.ids.add(id)
            self._unwritten[id] = batch.written
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await asyncio.shield(batch.written)

    async def settled(self, id: RequestId) -> None:
        """Wait until all that was changed of a request is written.

        Raises:
            StoreUnavailableError: It cannot be written at present.
        """
        while (written := self._unwritten.get(id)) is not None:
            self.check()
            await asyncio.shield(written)

    async def close(self) -> None:
        """Wait for the writes under way; one that fails is not tried again."""
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while (batch := self._next) is not None:
            self._next = None
            await self._write_until_done(batch)
        self._task = None

    async def _write_until_done(self, batch: _Batch) -> None:
        puts = [(key, value) for key, value in batch.changes.items() if value is not None]
        deletes = [key for key, value in batch.changes.items() if value is None]
        while True:
            try:
                await self._journal.write(puts, deletes, durable=batch.durable)
            except Exception as error:  # whatever it is, the state in process is ahead of the journal
                self._failure = error
                if self._closing.is_set():
                    self._give_up(batch, error)
                    return
                await self._pause()
            else:
                self._failure = None
                self._done(batch)
                return

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._retry_s):
                await self._closing.wait()

    def _done(self, batch: _Batch) -> None:
        for id in batch.ids:
            if self._unwritten.get(id) is batch.written:
                del self._unwritten[id]
        for announce in batch.announcements:
            announce()
        batch.written.set_result(None)

    def _give_up(self, batch: _Batch, error: Exception) -> None:
        refused = StoreUnavailableError(f"the journal cannot be written: {error}")
        refused.__cause__ = error
        batch.written.set_exception(refused)
        batch.written.exception()  # a caller may have gone: nobody else need look at it
