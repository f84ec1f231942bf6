"""Group commit: operations during a journal write share the next write."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.ids import RequestId
from qlm.domain.ports.journal import Journal
from qlm.store.core.effects import Logged
from qlm.store.embedded.token_log import TokenLog

Changes = Mapping[str, bytes | None]
"""New values by key; None deletes."""

PROBE_KEY: Final = "probe"
"""Entry of the journal that `probe` writes; it is never read."""

RETRY_S: Final = 1.0
"""Pause before a failed write is retried, seconds."""


@dataclass(slots=True, eq=False)
class Output:
    """Output of unfinished requests, for the token log."""

    logged: list[Logged] = field(default_factory=list)
    extended: dict[RequestId, LogExtensions] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Batch:
    written: asyncio.Future[None]
    output: Output = field(default_factory=Output)
    changes: dict[str, bytes | None] = field(default_factory=dict)
    announcements: list[Callable[[], None]] = field(default_factory=list)
    ids: set[RequestId] = field(default_factory=set)
    durable: bool = False


class JournalWriter:
    """Writer of a journal and a token log, in the order of the calls; announces changes once written.

    The state in process is newer than the journal, so a failed write is retried until it succeeds, while its
    callers wait. Meanwhile `check` rejects further changes, so that the difference does not grow.
    """

    def __init__(self, journal: Journal, tokens: TokenLog, *, retry_s: float = RETRY_S) -> None:
        self._journal = journal
        self._tokens = tokens
        self._in_thread = False
        self._retry_s = retry_s
        self._next: _Batch | None = None
        self._unwritten: dict[RequestId, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closing = asyncio.Event()

    def check(self) -> None:
        """Reject a change while the journal cannot be written, or after `close`.

        Raises:
            StoreUnavailableError: The journal cannot be written, or the store is closed.
        """
        if self._failure is not None:
            raise StoreUnavailableError(f"the journal cannot be written: {self._failure}") from self._failure
        if self._closing.is_set():
            raise StoreUnavailableError("the store is closed")

    def warnings(self) -> Sequence[str]:
        """Return what was lost of the journal before it was opened."""
        return self._journal.warnings()

    async def write(
        self,
        output: Output,
        changes: Changes,
        announce: Callable[[], None],
        ids: Iterable[RequestId],
        *,
        durable: bool,
    ) -> None:
        """Write changes of some requests, then call `announce`; cancellation of the caller stops neither.

        Raises:
            StoreUnavailableError: The store was closed before the journal could be written.
        """
        batch = self._add(changes, announce, ids, durable=durable)
        batch.output.logged += output.logged
        batch.output.extended |= output.extended
        await asyncio.shield(batch.written)

    def may_write_now(self, ids: Iterable[RequestId]) -> bool:
        """Return True if `write_now` may write output of these requests: nothing of them is under way."""
        if self._in_thread or self._tokens.slow():
            return False
        return not self._unwritten or self._unwritten.keys().isdisjoint(ids)

    def write_now(self, logged: Iterable[Logged], extended: Mapping[RequestId, LogExtensions]) -> None:
        """Write output of unfinished requests before returning; a failure is not retried.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        self._tokens.write(logged, extended.items())

    def write_later(self, changes: Changes) -> None:
        """Write changes that concern no request with the next write; `close` waits for it."""
        self._add(changes, _nothing, (), durable=False)

    def _add(
        self, changes: Changes, announce: Callable[[], None], ids: Iterable[RequestId], *, durable: bool
    ) -> _Batch:
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
        return batch

    async def probe(self) -> None:
        """Write something without a meaning.

        Raises:
            StoreUnavailableError: The journal or the token log cannot be written, or the store is closed.
        """
        await self.put(PROBE_KEY, b"")
        if not self._in_thread:
            self._tokens.write((), ())

    async def put(self, key: str, value: bytes) -> None:
        """Write an entry that belongs to no request; it is not retried.

        Raises:
            StoreUnavailableError: The journal cannot be written, or the store is closed.
        """
        self.check()
        await self._journal.write([(key, value)])

    async def move(self, entries: Mapping[str, bytes]) -> None:
        """Write entries that shall survive a power failure, after `close`.

        Raises:
            StoreUnavailableError: They cannot be written.
        """
        if entries:
            await self._journal.write(list(entries.items()), durable=True)

    async def settled(self, id: RequestId) -> None:
        """Wait until all changes of a request are written.

        Raises:
            StoreUnavailableError: The journal cannot be written.
        """
        while (written := self._unwritten.get(id)) is not None:
            self.check()
            await asyncio.shield(written)

    async def close(self) -> None:
        """Wait for the writes under way; a failed one is not retried."""
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
                await self._write_output(batch.output)
                if puts or deletes:
                    await self._journal.write(puts, deletes, durable=batch.durable)
            except Exception as error:  # any error: the state in process is newer than the journal
                self._failure = error
                if self._closing.is_set():
                    self._give_up(batch, error)
                    return
                await self._pause()
            else:
                self._failure = None
                self._done(batch)
                return

    async def _write_output(self, output: Output) -> None:
        """Write output in a thread: the kernel may have held up the last write."""
        if not (output.logged or output.extended):
            return
        data = self._tokens.prepare(output.logged, output.extended.items())
        self._in_thread = True
        try:
            await asyncio.to_thread(self._tokens.put, data)
        finally:
            self._in_thread = False
        output.logged, output.extended = [], {}

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
        batch.written.exception()  # marks it as retrieved: its callers may be gone


def _nothing() -> None:
    """Announce nothing."""
