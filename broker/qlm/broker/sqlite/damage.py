"""Damage of a queue file: what is lost of it, before anything is changed.

SQLite checks each frame (a page) of the write-ahead log by a checksum, takes the first that does not fit for
the end of the log, and drops all behind it without a word. So the frames that it accepts are compared with
what log and index say was written: the frames of the present generation of the log carry its two salts, and
the index, which a killed process leaves behind, counts the frames of the last commit. The pages of the file
itself are compared with their checksums.

What stays unseen: a log cut or deleted after the machine went down (its index is gone too), and damage of the
last frame of its last commit then, which looks like a frame that was being written.
"""

import filecmp
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from qlm.broker.sqlite.messages import checksums_mark, lacks_checksums
from qlm.broker.sqlite.page_checksums import Comparison, compare, has_bytes, has_entries, is_mark
from qlm.broker.sqlite.write_ahead_log import Written, index_path, log_path, read_index, read_written
from qlm.domain.shell.damage import keep_copy, kept_as

_SHOWN_MAX: Final = 5

UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors of calls on a damaged file; one is that of Python about a message which quotes damaged text."""


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether an error is that of Python about a text column that is no UTF-8: SQLite's has a code."""
    return not hasattr(error, "sqlite_errorcode")


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings about a file before it is opened.

    Attributes:
        damage: What is lost of it, in a sentence each.
        damaged: Files to be copied before they are changed, with the paths of the copies.
        orphaned: Files to be renamed, since the file to which they belong is lost, with their new paths.
        checked: Its checksums are there, and may be used further.
    """

    damage: tuple[str, ...] = ()
    damaged: Mapping[Path, Path] = field(default_factory=dict)
    orphaned: Mapping[Path, Path] = field(default_factory=dict)
    checked: bool = False

    def put_away(self) -> None:
        """Copy damaged files, and rename those whose file is lost.

        Raises:
            OSError: A copy cannot be written, or a file not be renamed.
        """
        for path, kept in self.damaged.items():
            keep_copy(path, kept)
        for path, kept in self.orphaned.items():
            path.replace(kept)


@dataclass(frozen=True, slots=True)
class _Look:
    """Findings of SQLite in a file.

    Attributes:
        frames: Frames of the log that it accepts.
        mark: Mark of the file; None if it has none.
        readable: The file has the form of a queue file.
        foreign: It is whole, and as a version without checksums leaves it, or as SQLite writes a copy.
    """

    frames: int
    mark: int | None = None
    readable: bool = False
    foreign: bool = False


def checksums_path(path: Path) -> Path:
    """Return the path of the checksums of a queue file."""
    return Path(f"{path}-checksums")


def inspect(path: Path) -> Inspection:
    """Inspect a queue file that no process uses; leaves its files as they are.

    Raises:
        OSError: A file cannot be read.
    """
    written = read_written(path)
    beside = checksums_path(path)
    if not has_bytes(path):
        return _of_lost_file(path, written)
    compared = compare(path, beside, written.pages) if beside.exists() else None
    if not written.frames and (compared is None or compared.fits):
        return Inspection(checked=compared is not None and compared.known)
    with _index_restored(path):
        look = _look(path, compared)
    damage, damaged = list[str](), dict[Path, Path]()
    if look.frames < written.frames:
        damaged |= _kept([log_path(path)] if written.exists else [])
        damage.append(_lost_frames(path, written, look.frames, damaged.get(log_path(path))))
    if compared is not None and compared.unreadable:
        damaged |= _kept([beside])
        damage.append(
            f"{beside}: the checksums of {path} are damaged: {compared.unreadable}; its pages cannot be "
            f"checked; they are kept as {damaged[beside]}"
        )
    elif compared is not None and compared.changed and _is_of(compared, written, look):
        damaged |= _kept([path])
        damage.append(_changed_pages(path, compared, damaged[path]))
    checked = not damage and compared is not None and compared.known and compared.fits
    return Inspection(tuple(damage), damaged, checked=checked)


def _of_lost_file(path: Path, written: Written) -> Inspection:
    """Inspect what is beside a queue file that has nothing: beside a new one, there is nothing yet.

    A new file has its first page before it has a commit in the log, or checksums.
    """
    left = [log_path(path)] if written.exists and written.frames else []
    left += [checksums_path(path)] if has_entries(checksums_path(path)) else []
    orphaned = _kept(left)
    if not orphaned:
        return Inspection()
    state = "empty" if path.exists() else "missing"
    kept = " and ".join(f"{each} is kept as {other}" for each, other in orphaned.items())
    damage = (
        f"{path}: the queue file is {state}, but files beside it are of one; all of its accepted requests "
        f"and results are lost; a new one is begun, and {kept}"
    )
    return Inspection((damage,), orphaned=orphaned)


def _kept(paths: Iterable[Path]) -> dict[Path, Path]:
    """Return free paths under which to keep damaged files: what was kept of earlier damage stays."""
    # A start that was killed after it kept a file names the same damage again, by the same code.
    return {path: kept_as(path, partial(filecmp.cmp, path, shallow=False)) for path in paths}


def first_error(connection: sqlite3.Connection) -> str:
    """Check the pages of a file; return the first error, or an empty text."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return "" if found == "ok" else str(found)


def _is_of(compared: Comparison, written: Written, look: _Look) -> bool:
    """Return whether checksums are of this file as it was left.

    They are not if another copy of the file was put in its place, or if a version without checksums, or
    another program after a kill, has used it since. Another copy has another mark, or another change counter
    if SQLite wrote it in the same session or since. A version without checksums changes many pages, one
    flipped byte one. A mark that is missing shows nothing: damage may have taken it.
    """
    if not (compared.closed or written.exists or written.indexed):
        return False
    if not look.readable:
        return True
    if look.mark == compared.mark:
        return not look.foreign
    if not look.mark:
        return len(compared.changed) == 1 or not look.foreign
    return not is_mark(look.mark)


def _lost_frames(path: Path, written: Written, frames: int, kept_as: Path | None) -> str:
    lost = sum(position > frames for position in written.commits) or 1
    kept = "the log is gone" if kept_as is None else f"the log is kept as {kept_as}"
    pages = "1 page or more was" if written.frames == 1 else f"{written.frames} pages were"
    return (
        f"{path}: its write-ahead log is damaged: {pages} written to it, {frames} can be "
        f"read; {lost} or more commits are lost, and with them accepted requests and results; {kept}"
    )


def _changed_pages(path: Path, compared: Comparison, kept: Path) -> str:
    shown = ", ".join(map(str, compared.changed[:_SHOWN_MAX]))
    more = ", ..." if len(compared.changed) > _SHOWN_MAX else ""
    return (
        f"{path}: it is damaged, or was changed by another program: {len(compared.changed)} of "
        f"{compared.pages} pages do not fit their checksums ({shown}{more}); accepted requests and results "
        f"in them may be wrong or lost; it is kept as {kept}"
    )


def _look(path: Path, compared: Comparison | None) -> _Look:
    """Let SQLite read a file; read-only, it moves nothing from the log into the file."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    mark, readable, foreign = None, False, False
    try:
        mark, readable = checksums_mark(connection), True
        if compared is not None and compared.changed:
            copied = compared.recounted and mark == compared.mark
            foreign = (copied or lacks_checksums(connection)) and not first_error(connection)
    except UNREADABLE:
        pass  # a message says so when it is opened, unless the damage is named before
    finally:
        connection.close()
    return _Look(read_index(path).frames, mark, readable, foreign)


@contextmanager
def _index_restored(path: Path) -> Iterator[None]:
    """Restore the index, from which SQLite takes out what it does not accept, and delete new files."""
    files = {each: each.exists() for each in (log_path(path), index_path(path))}
    index = index_path(path).read_bytes() if files[index_path(path)] else None
    try:
        yield
    finally:
        for each, existed in files.items():
            if not existed:
                each.unlink(missing_ok=True)
        if index is not None:
            with suppress(OSError):
                index_path(path).write_bytes(index)
