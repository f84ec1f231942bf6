"""Checkpoints of a queue file: pages move from the write-ahead log into the file, their checksums first.

A checksum is of the newest page in the log, so the log is synced before the checksums: after a power failure
that took the log only, they would not fit the file.
"""

import logging
import os
import secrets
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from qlm.broker.sqlite.damage import checksums_path
from qlm.broker.sqlite.messages import set_checksums_mark
from qlm.broker.sqlite.page_checksums import PageChecksums, mark_of
from qlm.broker.sqlite.write_ahead_log import Index, OpenIndex, cut_log, synced_pages
from qlm.domain.errors import BrokerUnavailableError

FRAMES_MAX: Final = 1_000
"""Frames in the log after which they are moved, as SQLite does by itself."""

log = logging.getLogger("qlm.broker")


class Checkpoints:
    """Checkpoints of a file that one connection writes, called in the thread of that connection.

    Attributes:
        mark: Mark by which the checksums name the file.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        checksums: PageChecksums,
        page_bytes: int,
        mark: int,
        pages: int | None,
    ) -> None:
        """Use `Checkpoints.begin` instead."""
        self.mark = mark
        self._pages = pages
        self._path = path
        self._index = OpenIndex(path)
        self._connection = connection
        self._checksums = checksums
        self._page_bytes = page_bytes
        self._failed = False
        self._noted = Index()

    @classmethod
    def begin(cls, path: Path, connection: sqlite3.Connection, *, fresh: bool) -> "Checkpoints":
        """Begin with a file that was opened.

        Args:
            path: The file.
            connection: Its connection, which moves nothing by itself.
            fresh: Take the checksums of its pages as they are.

        Raises:
            BrokerUnavailableError: The checksums cannot be written.
        """
        mark = mark_of(secrets.randbits(31))
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        pages = None
        try:
            checksums = PageChecksums(checksums_path(path))
            if fresh:
                # It stays open until SQLite has closed the file: to close any descriptor releases SQLite's
                # lock on it. Another process that then looks into the file takes itself for the last one,
                # and deletes the log, to which this one would go on writing.
                pages = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                checksums.take(pages, page_bytes)
            checksums.begin(page_bytes, mark)
            connection.execute("PRAGMA synchronous = NORMAL")  # later facts bring the mark to the disk
            set_checksums_mark(connection, mark)
        except (OSError, sqlite3.Error) as error:
            raise BrokerUnavailableError(
                f"the checksums of the queue file {path} cannot be written: {error}"
            ) from error
        return cls(path, connection, checksums, page_bytes, mark, pages)

    def after_commit(self) -> None:
        """Move what is in the log once there is enough of it; a failure leaves it there."""
        index = self._index.read()
        if index.frames - self._noted_frames(index) >= FRAMES_MAX:
            self._move(index, "PASSIVE")

    def clear(self) -> None:
        """Cut off the log what a failed commit left behind the last one; call in a write transaction.

        A commit that could not be synced is there in full. Shorter ones would be written over its beginning,
        and the rest, which has its commit, look like damage after a kill.

        Raises:
            OSError: The log cannot be cut.
        """
        cut_log(self._path, self._index.read())

    def end(self) -> bool:
        """Move all; return False if something stays in the log."""
        moved = self._move(self._index.read(), "TRUNCATE")
        if moved:
            with suppress(OSError):  # it then counts as killed
                self._checksums.end(self._page_bytes, self.mark)
        self._checksums.close()
        return moved

    def close(self) -> None:
        """Close what is open beside the connections, after them."""
        self._index.close()
        if self._pages is not None:
            os.close(self._pages)
            self._pages = None

    def _noted_frames(self, index: Index) -> int:
        """Return for how many frames at the beginning of the log checksums are written.

        Those of them that a reader kept in the log are tried again with later ones, not after each commit.
        """
        noted = self._noted.frames if self._noted.salts == index.salts else 0
        return max(index.moved, noted)

    def _move(self, index: Index, how: str) -> bool:
        try:
            self._checksums.put(synced_pages(self._path, index, self._noted_frames(index)))
            self._noted = index
            (busy, _, _) = self._connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        except (OSError, sqlite3.Error) as error:
            if not self._failed:
                log.warning("the write-ahead log of %s is not moved into it: %s", self._path, error)
            self._failed = True
            return False
        self._failed = False
        return not busy
