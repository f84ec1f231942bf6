"""Checksums of the pages of a queue file, in a file beside it: SQLite has none.

They are written before pages are moved from the write-ahead log into the file, so at any moment each page of
the file fits its checksum or is in the log, which has checksums of its own.

The file begins with `_MAGIC`, the size of a page, whether the queue file was closed (four bytes each), the
mark of the queue file (eight), and the CRC-32 of all this. Closed is 1, or `_COUNTED` with the lower bits of
SQLite's change counter, which has another value in a copy that SQLite wrote. Per page follow the CRC-32 of
the page, which begins with that of its number, and the CRC-32 of these four bytes; both are 0 for a page
never written. All numbers are little-endian.
"""

import os
import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

_MAGIC: Final = b"QLMCRC1\n"
_HEADER: Final = struct.Struct("<8sIIQ")
_CHECK: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<4sI")
_FIRST_ENTRY: Final = _HEADER.size + _CHECK.size
_NONE: Final = bytes(_ENTRY.size)
_READ_PAGES: Final = 256

_COUNTED: Final = 1 << 31
_COUNTERS: Final = struct.Struct(">24xI64xI")
"""First page of the queue file: its change counter is there twice."""

_MARK_BITS: Final = 31


def mark_of(random: int) -> int:
    """Return a mark for a queue file, which shows whether it is damaged.

    Args:
        random: Its lower 31 bits count.
    """
    chosen = random & ((1 << _MARK_BITS) - 1)
    return chosen << _MARK_BITS | _mark_check(chosen)


def is_mark(number: int) -> bool:
    """Return False for a damaged mark."""
    return number > 0 and number & ((1 << _MARK_BITS) - 1) == _mark_check(number >> _MARK_BITS)


def _mark_check(chosen: int) -> int:
    # The upper bit is set, so that no mark is 0.
    return crc32(chosen.to_bytes(8, "little")) >> 2 | 1 << (_MARK_BITS - 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the checksums say of a queue file.

    Attributes:
        mark: Mark of the queue file for which they were written; None if there are none, or unreadable ones.
        closed: That file was closed after they were written.
        pages: Number of pages of the file.
        changed: Numbers of the pages that do not fit, from 1.
        unreadable: Why the checksums cannot be read; empty if they can.
        recounted: More than one page differs, and the change counter is another than when it was closed.
    """

    mark: int | None
    closed: bool
    pages: int
    changed: tuple[int, ...] = ()
    unreadable: str = ""
    recounted: bool = False

    @property
    def known(self) -> bool:
        """True if there are checksums: a process may have been killed while it began to write them."""
        return self.mark is not None

    @property
    def fits(self) -> bool:
        """True if no page differs from its checksum."""
        return not (self.changed or self.unreadable)


def has_bytes(path: Path) -> bool:
    """Return whether a file is there and not empty."""
    return path.exists() and path.stat().st_size > 0


def has_entries(beside: Path) -> bool:
    """Return whether there are checksums of any page."""
    return beside.exists() and beside.stat().st_size > _FIRST_ENTRY


def compare(path: Path, beside: Path, in_log: Container[int]) -> Comparison:
    """Compare a queue file with its checksums.

    Args:
        path: The queue file.
        beside: The file of its checksums.
        in_log: Pages that the write-ahead log has, whose place in the file counts for nothing.
    """
    data = beside.read_bytes()
    if not any(data[:_FIRST_ENTRY]):
        return Comparison(None, False, 0)
    if len(data) < _FIRST_ENTRY:
        return Comparison(None, False, 0, unreadable=f"it has {len(data)} bytes")
    magic, page_bytes, closed, mark = _HEADER.unpack_from(data)
    if _CHECK.unpack_from(data, _HEADER.size) != (crc32(data[: _HEADER.size]),) or magic != _MAGIC:
        return Comparison(None, False, 0, unreadable="its first bytes do not fit their checksum")
    changed, pages, counted = [], 0, 0
    for number, page in _pages_of(path, page_bytes):
        pages = number
        counted = _counted(page) if number == 1 else counted
        entry = data[_place(number) : _place(number + 1)]
        fits = entry == _entry(number, page) or (entry in (b"", _NONE) and not any(page))
        if number in in_log:
            continue
        if entry != _NONE and len(entry) == _ENTRY.size:
            checksum, its_check = _ENTRY.unpack(entry)
            if its_check != crc32(checksum):
                unreadable = f"the checksum of page {number} does not fit its own"
                return Comparison(mark, bool(closed), pages, unreadable=unreadable)
        if not fits:
            changed.append(number)
    expected = (len(data) - _FIRST_ENTRY) // _ENTRY.size
    missing = range(pages + 1, expected + 1)
    changed += [n for n in missing if n not in in_log and data[_place(n) : _place(n + 1)] != _NONE]
    recounted = len(changed) > 1 and bool(closed & counted & _COUNTED) and closed != counted
    return Comparison(mark, bool(closed), max(pages, expected), tuple(changed), recounted=recounted)


class PageChecksums:
    """Checksums of one queue file, open for writing."""

    def __init__(self, beside: Path) -> None:
        """Open the file of checksums, created if missing.

        Raises:
            OSError: It cannot be opened.
        """
        self._fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        head = os.pread(self._fd, _HEADER.size, 0)
        self._counted: int = _HEADER.unpack(head)[2] if len(head) == _HEADER.size else 0

    def take(self, descriptor: int, page_bytes: int) -> None:
        """Take the checksums of a queue file as it is; they count once `begin` was called.

        Args:
            descriptor: The file, which the caller keeps open for as long as SQLite has it open.
            page_bytes: Size of a page.

        Raises:
            OSError: They cannot be written.
        """
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, bytes(_FIRST_ENTRY), 0)
        for number, page in _pages(descriptor, page_bytes):
            self._note(number, page)
            os.pwrite(self._fd, _entry(number, page), _place(number))
        os.fdatasync(self._fd)

    def begin(self, page_bytes: int, mark: int) -> None:
        """Record that a queue file is open, under a mark.

        Raises:
            OSError: It cannot be written.
        """
        self._write_header(page_bytes, mark, closed=0)

    def end(self, page_bytes: int, mark: int) -> None:
        """Record that the queue file was closed, all of it in its pages.

        Raises:
            OSError: It cannot be written.
        """
        self._write_header(page_bytes, mark, closed=self._counted or 1)

    def put(self, pages: Mapping[int, bytes]) -> None:
        """Write the checksums of pages, by number, and sync them to disk.

        Raises:
            OSError: They cannot be written.
        """
        for number, page in sorted(pages.items()):
            self._note(number, page)
            os.pwrite(self._fd, _entry(number, page), _place(number))
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _note(self, number: int, page: bytes) -> None:
        self._counted = _counted(page) if number == 1 else self._counted

    def _write_header(self, page_bytes: int, mark: int, *, closed: int) -> None:
        head = _HEADER.pack(_MAGIC, page_bytes, closed, mark)
        # The next `put` syncs it, before the file changes.
        os.pwrite(self._fd, head + _CHECK.pack(crc32(head)), 0)


def _pages_of(path: Path, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=0) as file:
        yield from _pages(file.fileno(), page_bytes)


def _pages(descriptor: int, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    number = 0
    while data := os.pread(descriptor, page_bytes * _READ_PAGES, page_bytes * number):
        for at in range(0, len(data), page_bytes):
            number += 1
            yield number, data[at : at + page_bytes]


def _counted(first_page: bytes) -> int:
    """Return `_COUNTED` with the change counter; 0 if that is damaged."""
    if len(first_page) < _COUNTERS.size:
        return 0
    counter, again = _COUNTERS.unpack_from(first_page)
    return _COUNTED | int(counter) & (_COUNTED - 1) if counter == again else 0


def _entry(number: int, page: bytes) -> bytes:
    checksum = crc32(page, number).to_bytes(4, "little")
    return checksum + _CHECK.pack(crc32(checksum))


def _place(number: int) -> int:
    return _FIRST_ENTRY + (number - 1) * _ENTRY.size
