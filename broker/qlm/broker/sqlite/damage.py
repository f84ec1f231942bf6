"""Damage of a queue file after an unclean end.

SQLite checks each frame (a page) of the write-ahead log by a checksum, takes the first that does not fit for
the end of the log, and drops all behind it without a word. So the frames that it accepts are compared with
what log and index say was written: the frames of the present generation of the log carry its two salts, and
the index, which a killed process leaves behind, counts the frames of the last commit.

What stays unseen: a log cut after the machine went down (its index is gone too), and pages of the file itself
that were changed and still have the form of a page.
"""

import os
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_LOG_HEADER: Final = struct.Struct(">I4xI4x8s8x")
"""Log: its magic number, page size and salts."""

_MAGICS: Final = frozenset({0x377F0682, 0x377F0683})

_PAGE_BYTES: Final = frozenset(1 << n for n in range(9, 17))

_FRAME_HEADER: Final = struct.Struct(">4xI8s8x")
"""Frame: pages of the file after this commit (0 within a transaction), and the salts."""

_INDEX_HEADER: Final = struct.Struct("=12xBxHI12x8s8x")
"""Index: whether it is in use, the page size, the frames of the last commit, and the salts of the log."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written to the write-ahead log, as its files say before SQLite opens them.

    Attributes:
        exists: There is a log.
        frames: Number of frames up to the last commit.
        commits: Positions of the commits among them, as far as the log has them.
    """

    exists: bool
    frames: int
    commits: tuple[int, ...]


def read_written(path: Path) -> Written:
    """Read what was written to the log of a file; call before SQLite opens it."""
    log_path = _log_path(path)
    if not log_path.exists():
        return Written(exists=False, frames=_read_index(path)[0], commits=())
    indexed, salts, page_bytes = _read_index(path)
    with log_path.open("rb") as file:
        head = file.read(_LOG_HEADER.size)
        if len(head) == _LOG_HEADER.size:
            magic, its_page_bytes, its_salts = _LOG_HEADER.unpack(head)
            if magic in _MAGICS and its_page_bytes in _PAGE_BYTES:
                if its_salts != salts:
                    indexed = 0  # the index is of another generation of the log
                salts, page_bytes = its_salts, its_page_bytes
        commits = tuple(_commits(file, salts, page_bytes)) if page_bytes else ()
    return Written(exists=True, frames=max(indexed, *commits, 0), commits=commits)


def damage_of(path: Path, connection: sqlite3.Connection, written: Written) -> str:
    """Compare an opened file with what was written to its log.

    A damaged log is copied to `-wal.damaged`.

    Returns:
        What is lost, in a sentence; empty if nothing is known to be.
    """
    (_, frames, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if frames >= written.frames:
        return ""
    kept = "the log is gone"
    if written.exists:
        copy = shutil.copyfile(_log_path(path), f"{path}-wal.damaged")
        kept = f"a copy of the log is {copy}"
    # Otherwise what is lost would stay in the log behind what is written next, and be found again.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    lost = sum(position > frames for position in written.commits) or 1
    return (
        f"{path}: its write-ahead log is damaged: {written.frames} pages were written to it, {frames} can be "
        f"read; {lost} or more commits are lost, and with them accepted requests and results; {kept}"
    )


def first_error(connection: sqlite3.Connection) -> str:
    """Check the pages of a file; return the first error, or an empty text."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return "" if found == "ok" else str(found)


def _read_index(path: Path) -> tuple[int, bytes, int]:
    """Return the frames of the last commit, the salts and the page size of the index, if there is one."""
    with suppress(OSError):
        head = Path(f"{path}-shm").read_bytes()[: _INDEX_HEADER.size]
        if len(head) == _INDEX_HEADER.size:
            in_use, page_bytes, frames, salts = _INDEX_HEADER.unpack(head)
            if in_use:
                return frames, salts, 65536 if page_bytes == 1 else page_bytes
    return 0, b"", 0


def _commits(file: BinaryIO, salts: bytes, page_bytes: int) -> Iterator[int]:
    """Yield the positions, from 1, of the frames that end a transaction of the present generation."""
    size = os.fstat(file.fileno()).st_size
    step = _FRAME_HEADER.size + page_bytes
    for position in range((size - _LOG_HEADER.size) // step):
        head = os.pread(file.fileno(), _FRAME_HEADER.size, _LOG_HEADER.size + position * step)
        pages, its_salts = _FRAME_HEADER.unpack(head)
        if pages and its_salts == salts:
            yield position + 1


def _log_path(path: Path) -> Path:
    return Path(f"{path}-wal")
