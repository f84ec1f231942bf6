"""Writer thread of a SQLite file, with group commit."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from qlm.broker.sqlite.write_ahead_log import log_path

T = TypeVar("T")

Apply = Callable[[sqlite3.Connection, Sequence[T]], None]
"""Writes many operations of one kind, in order, inside the open transaction."""

Settled = Callable[[Exception | None], None]
"""Called in the event loop with the result of a write: None after the commit, or the error."""

BATCH_OPERATIONS_MAX: Final = 2_000
"""Maximum size of a batch: bounds the time until its first caller gets the result."""


@dataclass(frozen=True, slots=True)
class Write:
    """Operation for the writer.

    Attributes:
        apply: Writes operations of its kind; called once per batch.
        operation: The operation.
        durable: It must survive a power failure, otherwise only the end of this process.
        settled: Gets the result; without it the operation is lazy, kept until a commit succeeds.
    """

    apply: Apply[Any]
    operation: Any
    durable: bool = False
    settled: Settled | None = None


class SqliteWriter:
    """Writer that commits in the order of the calls, many writes in one transaction.

    A transaction with a durable write is synced to disk. The write-ahead log is a sequence, so a later sync
    makes all earlier commits durable also, and none becomes durable before an earlier one.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[], None],
        clear: Callable[[], None],
    ) -> None:
        """Start writing.

        Args:
            path: The file of the connection.
            connection: In autocommit mode; used only in the writer's thread from now on.
            loop: The event loop of the callers.
            committed: Called in the writer's thread after each commit.
            clear: Called there in the transaction after one that failed, which may have left a commit in the
                write-ahead log; an OSError makes this one fail, too.
        """
        # The log is there: to open the file wrote to it.
        self._inodes = {each: each.stat().st_ino for each in (path, log_path(path))}
        self._connection = connection
        self._loop = loop
        self._committed = committed
        self._clear = clear
        self._unclear = False
        self._inbox: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        self._lazy: list[Write] = []
        self._synced: bool | None = None
        self._thread = threading.Thread(target=self._run, name="qlm-sqlite-writer", daemon=True)
        self._thread.start()

    def put(self, writes: list[Write]) -> None:
        """Queue writes, after all earlier ones."""
        self._inbox.put(writes)

    def stop(self) -> None:
        """Write all queued writes, then end the thread; blocks until then."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._next_batch()
            if batch:
                self._write(batch)

    def _next_batch(self) -> tuple[list[Write], bool]:
        """Wait for writes, then take all that are queued; the flag is True if the thread must end."""
        batch: list[Write] = []
        writes = self._inbox.get()
        while writes is not None:
            batch.extend(writes)
            if len(batch) >= BATCH_OPERATIONS_MAX:
                return batch, False
            try:
                writes = self._inbox.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _write(self, batch: list[Write]) -> None:
        error = self._commit(self._lazy + batch)
        if error is None:
            self._lazy = []
        elif len(batch) > 1 and not isinstance(error, sqlite3.OperationalError):
            # One operation cannot be written (for example, a value too large): it must not fail the others.
            for write in batch:
                self._write([write])
            return
        elif isinstance(error, sqlite3.OperationalError):
            self._lazy += [write for write in batch if write.settled is None]
        self._report(batch, error)
        if error is None:
            self._committed()

    def _commit(self, batch: Sequence[Write]) -> Exception | None:
        try:
            self._check_file()
            self._sync(any(write.durable for write in batch))
            self._connection.execute("BEGIN IMMEDIATE")
            self._clear_if_unclear()
            for apply, operations in _by_kind(batch):
                apply(self._connection, operations)
            self._connection.execute("COMMIT")
        except Exception as error:  # also for a value that cannot be bound: the thread must continue
            self._unclear = True
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return error
        self._unclear = False
        return None

    def _check_file(self) -> None:
        """Reject writes to a file or log that was deleted or replaced: no process would read it again."""
        for path, known in self._inodes.items():
            try:
                inode = path.stat().st_ino
            except OSError as error:
                raise sqlite3.OperationalError(f"{path} is gone: {error.strerror}") from error
            if inode != known:
                raise sqlite3.OperationalError(f"{path} was replaced by another file")

    def _clear_if_unclear(self) -> None:
        if not self._unclear:
            return
        try:
            self._clear()
        except OSError as error:
            raise sqlite3.OperationalError(f"its write-ahead log cannot be cut: {error.strerror}") from error

    def _sync(self, durable: bool) -> None:
        if durable is not self._synced:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synced = durable

    def _report(self, batch: Iterable[Write], error: Exception | None) -> None:
        callbacks = [write.settled for write in batch if write.settled is not None]
        if callbacks:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                self._loop.call_soon_threadsafe(_call_all, callbacks, error)


def _by_kind(batch: Sequence[Write]) -> Iterable[tuple[Apply[Any], list[Any]]]:
    """Group operations by kind, keeping their order."""
    # Order between kinds may change. A message is acknowledged after the commit that stored it, so in a later
    # batch; if it is returned and acknowledged in one batch, no mark of it stays in either order.
    kinds: dict[Apply[Any], list[Any]] = {}
    for write in batch:
        kinds.setdefault(write.apply, []).append(write.operation)
    return kinds.items()


def _call_all(callbacks: Sequence[Settled], error: Exception | None) -> None:
    for callback in callbacks:
        callback(error)
