"""Writes of the embedded store: output to the token log, changes to the journal."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.ids import RequestId
from qlm.domain.ports.journal import Journal
from qlm.store.core.effects import Logged
from qlm.store.embedded.token_log import TokenLog
from qlm.store.embedded.write_chain import Batch, Changes, Output, WriteChain, pause

log = logging.getLogger("qlm.store")

PROBE_KEY: Final = "probe"
"""Entry of the journal that `probe` writes; it is never read."""

RETRY_S: Final = 1.0
"""Pause before a failed write is retried, seconds."""


class JournalWriter:
    """Writer of a journal and a token log; announces changes once written.

    What concerns a request is written in the order of the calls. Output of other requests does not wait for
    the journal, which waits for the disk.

    The state in process is newer than the journal, so a failed write is retried until it succeeds, while its
    callers wait. Meanwhile `check` rejects further changes, so that the difference does not grow.
    """

    def __init__(self, journal: Journal, tokens: TokenLog, *, retry_s: float = RETRY_S) -> None:
        self._journal = journal
        self._tokens = tokens
        self._token_log_in_use = asyncio.Lock()
        self._retry_s = retry_s
        self._unwritten: dict[RequestId, Batch] = {}
        self._closing = asyncio.Event()
        self._output = WriteChain(self._write_output, self._done, self._closing, retry_s)
        self._changes = WriteChain(self._write_changes, self._done, self._closing, retry_s)
        self._syncing: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Reject a change while the journal cannot be written, or after `close`.

        Raises:
            StoreUnavailableError: The journal cannot be written, or the store is closed.
        """
        failure = self._changes.failure or self._output.failure
        if failure is not None:
            raise StoreUnavailableError(f"the journal cannot be written: {failure}") from failure
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
        batch = self._add(changes, announce, frozenset(ids), durable=durable)
        batch.output.logged += output.logged
        batch.output.extend(output.extended)
        await asyncio.shield(batch.written)

    def may_write_now(self, ids: Iterable[RequestId]) -> bool:
        """Return True if `write_now` may write output of these requests: nothing of them is under way."""
        if self._token_log_in_use.locked() or self._tokens.slow():
            return False
        return not self._unwritten or self._unwritten.keys().isdisjoint(ids)

    def write_now(self, logged: Iterable[Logged], extended: Mapping[RequestId, LogExtensions]) -> None:
        """Write output of unfinished requests before returning; a failure is not retried.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        self._tokens.write(logged, extended.items())
        self._sync_moved()

    def write_later(self, changes: Changes) -> None:
        """Write changes that concern no request with the next write; `close` waits for it."""
        self._add(changes, _nothing, frozenset(), durable=False)

    def _add(
        self, changes: Changes, announce: Callable[[], None], ids: frozenset[RequestId], *, durable: bool
    ) -> Batch:
        before = {batch for id in ids if (batch := self._unwritten.get(id)) is not None}
        # Output never waits for changes, so the two chains cannot wait for each other.
        only_output = not (changes or durable) and all(batch.chain is self._output for batch in before)
        batch = (self._output if only_output else self._changes).next_batch()
        batch.after |= {each.written for each in before if each.chain is not batch.chain}
        batch.changes.update(changes)
        batch.announcements.append(announce)
        batch.durable |= durable
        batch.ids |= ids
        self._unwritten.update(dict.fromkeys(ids, batch))
        return batch

    async def probe(self) -> None:
        """Write something without a meaning.

        Raises:
            StoreUnavailableError: The journal or the token log cannot be written, or the store is closed.
        """
        await self.put(PROBE_KEY, b"")
        self.check()
        if not self._token_log_in_use.locked():
            self._tokens.write((), ())

    async def put(self, key: str, value: bytes) -> None:
        """Write an entry that belongs to no request; it is not retried.

        Raises:
            StoreUnavailableError: The journal cannot be written, or the store is closed.
        """
        self.check()
        await self._journal.write([(key, value)])

    async def settle(self, changes: Changes) -> None:
        """Write changes that concern no request so that a power failure cannot undo them.

        Raises:
            StoreUnavailableError: The journal cannot be written, or the store is closed.
        """
        self.check()
        await self._journal.write(*_split(changes), durable=True)

    async def move(self, entries: Mapping[str, bytes]) -> None:
        """Write entries that shall survive a power failure, after `close`.

        Raises:
            StoreUnavailableError: They cannot be written.
        """
        if entries:
            await self._journal.write(list(entries.items()), durable=True)

    def is_settled(self, id: RequestId) -> bool:
        """Return True if all changes of a request are written."""
        return id not in self._unwritten

    async def settled(self, id: RequestId) -> None:
        """Wait until all changes of a request are written.

        Raises:
            StoreUnavailableError: The journal cannot be written.
        """
        while (batch := self._unwritten.get(id)) is not None:
            self.check()
            await asyncio.shield(batch.written)

    async def close(self) -> None:
        """Wait for the writes under way; a failed one is not retried."""
        self._closing.set()
        await self._output.finish()
        await self._changes.finish()
        if self._syncing is not None:
            await self._syncing

    async def _write_changes(self, batch: Batch) -> None:
        await self._write_output(batch)
        if batch.changes:
            await self._journal.write(*_split(batch.changes), durable=batch.durable)

    async def _write_output(self, batch: Batch) -> None:
        """Write output in a thread: the kernel may have delayed the last write."""
        output = batch.output
        if not (output.logged or output.extended):
            return
        async with self._token_log_in_use:
            data = self._tokens.prepare(output.logged, output.extended.items())
            await asyncio.to_thread(self._tokens.put, data)
        batch.output = Output()
        self._sync_moved()

    def _sync_moved(self) -> None:
        if self._syncing is None and self._tokens.moved() is not None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync_all_moved())

    async def _sync_all_moved(self) -> None:
        while (moved := self._tokens.moved()) is not None and not self._closing.is_set():
            try:
                await asyncio.to_thread(moved.sync)
            except StoreUnavailableError as error:
                log.warning("files of the token log are kept: %s", error)
                await pause(self._closing, self._retry_s)
            else:
                self._tokens.synced(moved)
        self._syncing = None

    def _done(self, batch: Batch) -> None:
        for id in batch.ids:
            if self._unwritten.get(id) is batch:
                del self._unwritten[id]
        for announce in batch.announcements:
            announce()


def _split(changes: Changes) -> tuple[list[tuple[str, bytes]], list[str]]:
    """Divide changes into what is put and what is deleted."""
    puts = [(key, value) for key, value in changes.items() if value is not None]
    return puts, [key for key, value in changes.items() if value is None]


def _nothing() -> None:
    """Announce nothing."""
