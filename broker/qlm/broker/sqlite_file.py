"""The SQLite file of the embedded broker and journal: one process, one writer, group commit."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from qlm.broker.batcher import Batcher
from qlm.broker.sqlite_lock import ProcessLock
from qlm.broker.sqlite_writer import Apply, SqliteWriter, Write
from qlm.broker.threads import share_interpreter
from qlm.domain.errors import BrokerUnavailableError, StoreCorruptError

SCHEMA_VERSION: Final = 1
"""Version of the tables, kept in `PRAGMA user_version`; a file of another version is refused."""

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

_BUSY_TIMEOUT_S: Final = 5.0
_WAL_BYTES_KEPT: Final = 64 * 2**20

R = TypeVar("R")
T = TypeVar("T")


class SqliteFile:
    """An open file; to be used in the event loop that opened it.

    Readers use a connection and a thread of their own, so a read never waits for a sync.
    """

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        """Use `SqliteFile.open` instead: this one blocks on the disk."""
        self.path = path.resolve()
        self._lock = ProcessLock(self.path)
        try:
            self._writing = _connect(self.path)
            self._reading = _connect(self.path)
        except BaseException:
            self._lock.release()
            raise
        self._loop = loop
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="qlm-sqlite-reader")
        self._writer = SqliteWriter(self.path, self._writing, loop)
        self._batcher: Batcher[Write] = Batcher(loop, self._writer.put)
        self._open = True

    @classmethod
    async def open(cls, path: Path) -> "SqliteFile":
        """Open a file, creating it if there is none, and keep other processes out.

        Also lowers the interpreter's switch interval (`threads.share_interpreter`).

        Raises:
            BrokerUnavailableError: Another process has it, or it cannot be opened.
            StoreCorruptError: It is no file of ours, or one of another schema version.
        """
        share_interpreter()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, cls, path, loop)

    async def write(
        self,
        apply: Apply[T],
        operation: T,
        *,
        durable: bool = False,
        committed: Callable[[], None] | None = None,
    ) -> None:
        """Write one operation and wait until it is committed.

        Args:
            apply: How operations of this sort are written.
            operation: What to write.
            durable: Wait until it would survive a power cut.
            committed: Called in the loop after the commit, in the order of commits, even if the caller
                of this method has given up waiting.

        Raises:
            BrokerUnavailableError: It was not written: the file is closed, or the disk is full or broken.
        """
        self.check_open()
        done: asyncio.Future[None] = self._loop.create_future()
        settled = partial(self._settle, done, committed)
        self._batcher.put(Write(apply, operation, durable, settled))
        await done

    def submit(self, apply: Apply[T], operation: T) -> None:
        """Have an operation written some time soon, after all earlier ones; nobody hears how it went.

        Raises:
            BrokerUnavailableError: The file is closed.
        """
        self.check_open()
        self._batcher.put(Write(apply, operation))

    async def read(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Run a query on all that is committed, in the reader's thread.

        Raises:
            BrokerUnavailableError: The file is closed or cannot be read.
        """
        self.check_open()
        try:
            return await self._loop.run_in_executor(self._reader, query, self._reading)
        except sqlite3.Error as error:
            raise BrokerUnavailableError(f"cannot read the queue file {self.path}: {error}") from error

    def read_now(self, query: Callable[[sqlite3.Connection], R]) -> R:
        """Run a query on all that is committed, blocking; for the time before work starts."""
        self.check_open()
        return self._reader.submit(query, self._reading).result()

    async def close(self) -> None:
        """Write what was submitted so far, close, and let other processes in. Later calls do nothing."""
        if not self._open:
            return
        self._batcher.flush()
        self._open = False
        await self._loop.run_in_executor(None, self._shut)

    def check_open(self) -> None:
        """Refuse to go on with a closed file.

        Raises:
            BrokerUnavailableError: It is closed.
        """
        if not self._open:
            raise BrokerUnavailableError(f"the queue file {self.path} is closed")

    def _settle(
        self, done: asyncio.Future[None], committed: Callable[[], None] | None, error: Exception | None
    ) -> None:
        if error is None and committed is not None:
            committed()
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(BrokerUnavailableError(f"not stored in the queue file {self.path}: {error}"))

    def _shut(self) -> None:
        self._writer.stop()
        self._reader.shutdown()
        self._reading.close()
        self._writing.close()
        self._lock.release()


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise BrokerUnavailableError(f"cannot open the queue file {path}: {error}") from error
    try:
        _prepare(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StoreCorruptError(f"{path} cannot be read as a queue file: {error}") from error
    except StoreCorruptError as error:
        connection.close()
        raise StoreCorruptError(f"{path} {error}") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version or tables:
        raise StoreCorruptError(f"has schema version {version}; expected {SCHEMA_VERSION}")
    connection.executescript(_SCHEMA)
