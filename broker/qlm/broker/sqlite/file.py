"""SQLite file of the embedded broker and journal: one process, one writer, group commit."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from qlm.broker.sqlite.checkpoints import Checkpoints
from qlm.broker.sqlite.damage import UNREADABLE, Inspection, first_error, inspect, is_undecodable
from qlm.broker.sqlite.lock import ProcessLock
from qlm.broker.sqlite.messages import was_unclean
from qlm.broker.sqlite.writer import Apply, Settled, SqliteWriter, Write
from qlm.broker.threads import Batcher, share_interpreter
from qlm.domain.errors import BrokerUnavailableError, UndecodableDataError
from qlm.domain.shell.damage import NO_CONSENT, Consent

SCHEMA_VERSION: Final = 1
"""Version of the tables, stored in `PRAGMA user_version`; a file of another version is rejected."""

_SCHEMA: Final = """
BEGIN;
CREATE TABLE queue (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE message (id INTEGER PRIMARY KEY, queue TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE returned (message INTEGER PRIMARY KEY) STRICT;
CREATE TABLE journal (seq INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value BLOB NOT NULL) STRICT;
CREATE TABLE fact (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
COMMIT;
"""

log = logging.getLogger("qlm.broker")

_BUSY_TIMEOUT_S: Final = 5.0
LAZY_S: Final = 0.1
"""Longest time until an operation without a result is written; most share a transaction with one that has."""

_WAL_BYTES_KEPT: Final = 64 * 2**20

R = TypeVar("R")
T = TypeVar("T")


class SqliteFile:
    """Open file, for the event loop that opened it.

    Readers have their own connection and thread, so a read never waits for a sync.

    Attributes:
        path: The file.
        damage: What was lost of it before it was opened, in a sentence each.
        mark: Mark by which its checksums name it, stored in it with each fact about it.
    """

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, consent: Consent) -> None:
        """Use `SqliteFile.open` instead: this blocks on the disk."""
        self.path = path.resolve()
        self._lock = ProcessLock(self.path)
        try:
            found = _inspected(self.path)
            self.damage = found.damage
            consent(self.damage)
            for sentence in self.damage:
                log.error("%s", sentence)
            self._writing = _connect(self.path, found)
            _prepare(self.path, self._writing)
            self._checkpoints = Checkpoints.begin(self.path, self._writing, fresh=not found.checked)
            self.mark = self._checkpoints.mark
            self._reading = _connect_for_reading(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._loop = loop
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="qlm-sqlite-reader")
        self._writer = SqliteWriter(
            self.path, self._writing, loop, self._checkpoints.after_commit, self._checkpoints.clear
        )
        self._batcher: Batcher[Write] = Batcher(loop, self._writer.put)
        self._lazy: list[Write] = []
        self._lazy_due: asyncio.TimerHandle | None = None
        self._open = True

    @classmethod
    async def open(cls, path: Path, consent: Consent = NO_CONSENT) -> "SqliteFile":
        """Open a file, created if missing, and lock it against other processes.

        Also lowers the interpreter's switch interval (`threads.share_interpreter`).

        Raises:
            BrokerUnavailableError: Another process uses the file, or it cannot be opened.
            DamagedDataError: The file is damaged, and there is no consent to that; nothing was changed.
            UndecodableDataError: The file is no queue file of this schema version, or cannot be read in spite
                of the consent.
        """
        share_interpreter()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, cls, path, loop, consent)

    async def write(
        self,
        apply: Apply[T],
        operation: T,
        *,
        durable: bool = False,
        settled: Settled | None = None,
    ) -> None:
        """Write one operation and wait until it is committed.

        Args:
            apply: Writes operations of this kind.
            operation: The operation.
            durable: Wait until it survives a power failure.
            settled: Called in the loop after the commit or its failure, in the order of commits, even if the
                caller was cancelled; not if the file is closed before this call.

        Raises:
            BrokerUnavailableError: Nothing was written: the file is closed, or the disk is full or broken.
        """
        self.check_open()
        done: asyncio.Future[None] = self._loop.create_future()
        self._write_lazy()
        self._batcher.put(Write(apply, operation, durable, partial(self._settle, done, settled)))
        await done

    def submit(self, apply: Apply[T], operation: T) -> None:
        """Queue an operation to be written soon, after all earlier ones, without a result.

        Raises:
            BrokerUnavailableError: The file is closed.
        """
        self.check_open()
        if self._lazy_due is None:
            self._lazy_due = self._loop.call_later(LAZY_S, self._write_lazy)
        self._lazy.append(Write(apply, operation))

    async def read(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Run a query on the committed data, in the reader's thread.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
        """
        self.check_open()
        try:
            return await self._loop.run_in_executor(self._reader, query, self._reading)
        except sqlite3.Error as error:
            raise BrokerUnavailableError(f"cannot read the queue file {self.path}: {error}") from error

    def read_now(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Run a query on the committed data, blocking; for use before work starts.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
            UndecodableDataError: It is damaged.
        """
        self.check_open()
        try:
            return self._reader.submit(query, self._reading).result()
        except UNREADABLE as error:
            if isinstance(error, sqlite3.OperationalError) and not is_undecodable(error):
                raise BrokerUnavailableError(f"cannot read the queue file {self.path}: {error}") from error
            raise UndecodableDataError(f"{self.path} cannot be read as a queue file: {error}") from error

    async def close(self) -> None:
        """Write all submitted operations, close, and release the lock. Later calls do nothing."""
        if not self._open:
            return
        self._write_lazy()
        self._batcher.flush()
        self._open = False
        await self._loop.run_in_executor(None, self._shut)

    def check_open(self) -> None:
        """Reject use of a closed file.

        Raises:
            BrokerUnavailableError: The file is closed.
        """
        if not self._open:
            raise BrokerUnavailableError(f"the queue file {self.path} is closed")

    def _write_lazy(self) -> None:
        """Write the operations without a result, before any later one."""
        if self._lazy_due is None:
            return
        self._lazy_due.cancel()
        lazy, self._lazy, self._lazy_due = self._lazy, [], None
        for write in lazy:
            self._batcher.put(write)

    def _settle(self, done: asyncio.Future[None], settled: Settled | None, error: Exception | None) -> None:
        if settled is not None:
            settled(error)
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(BrokerUnavailableError(f"not stored in the queue file {self.path}: {error}"))

    def _shut(self) -> None:
        self._writer.stop()
        self._reader.shutdown()
        # The last connection to be closed moves what is left of the log, if it may write.
        moved = self._checkpoints.end()
        for connection in (self._reading, self._writing) if moved else (self._writing, self._reading):
            connection.close()
        self._checkpoints.close()
        self._lock.release()


def _inspected(path: Path) -> Inspection:
    try:
        return inspect(path)
    except OSError as error:
        raise BrokerUnavailableError(f"cannot read the queue file {path}: {error.strerror}") from error


def _connect(path: Path, found: Inspection) -> sqlite3.Connection:
    try:
        found.put_away()
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise BrokerUnavailableError(f"cannot open the queue file {path}: {error}") from error
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA secure_delete = ON")  # what clients have erased is in no free page
        if found.damage:
            # Otherwise what is lost would stay in the log behind what is written next, and be found again.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")
    except UNREADABLE as error:
        connection.close()
        raise UndecodableDataError(f"{path} cannot be read as a queue file: {error}") from error
    return connection


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.as_uri()}?mode=ro",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise BrokerUnavailableError(f"cannot open the queue file {path}: {error}") from error


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    try:
        _check_schema(path, connection)
    except UNREADABLE as error:
        connection.close()
        raise UndecodableDataError(f"{path} cannot be read as a queue file: {error}") from error
    except UndecodableDataError:
        connection.close()
        raise


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        if was_unclean(connection) and (error := first_error(connection)):
            raise UndecodableDataError(
                f"{path} is damaged: {error}; it may be read with `sqlite3 {path} .recover`"
            )
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version or tables:
        raise UndecodableDataError(f"{path} has schema version {version}; expected {SCHEMA_VERSION}")
    connection.executescript(_SCHEMA)
