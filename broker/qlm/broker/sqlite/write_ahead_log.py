"""Write-ahead log of SQLite, as its two files have it: the log, and its index."""

import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_LOG_HEADER: Final = struct.Struct(">I4xI4x8s8s")
"""Log: its magic number, page size, salts, and the checksum of all before."""

_MAGICS: Final = frozenset({0x377F0682, 0x377F0683})

_PAGE_BYTES: Final = frozenset(1 << n for n in range(9, 17))

_FRAME_HEADER: Final = struct.Struct(">II8s8x")
"""Frame: number of the page, pages of the file after this commit (0 within a transaction), and the salts."""

_INDEX_HEADER: Final = struct.Struct("=12xBxHI12x8s8x")
"""Index: whether it is in use, page size, frames of the last commit, salts of the log. It is there twice."""

_INDEX_MOVED: Final = struct.Struct("=I")
"""Index, after both headers: frames whose pages are in the file."""

_INDEX_BYTES: Final = 2 * _INDEX_HEADER.size + _INDEX_MOVED.size

_CHECKSUM: Final = struct.Struct(">2I")
"""Last bytes of the header of the log and of each frame: of all before, and of the page behind it."""

_FRAME_CHECKED: Final = struct.Struct(">8s8x8s")
"""Frame: what its checksum covers besides the page, and that checksum."""

_PAGE_SIZE: Final = struct.Struct(">16xH")
"""File of pages: size of a page."""

_WORD_MAX: Final = 0xFFFFFFFF

_PART_BYTES: Final = 1 << 20


class Index(NamedTuple):
    """Index of a log.

    Attributes:
        frames: Frames of the last commit.
        moved: How many of them are in the file of pages already.
        salts: Salts of the log.
        page_bytes: Size of a page.
    """

    frames: int = 0
    moved: int = 0
    salts: bytes = b""
    page_bytes: int = 0


class Frame(NamedTuple):
    """Frame of a log.

    Attributes:
        position: From 1.
        page: Number of its page, from 1.
        commits: It ends a transaction.
        salts: Salts of the log when it was written.
    """

    position: int
    page: int
    commits: bool
    salts: bytes


@dataclass(frozen=True, slots=True)
class Written:
    """What was written to the write-ahead log, as its files say before SQLite opens them.

    Attributes:
        exists: There is a log.
        indexed: There is an index.
        frames: Number of frames up to the last commit; one whose last frame was being written does not count.
        commits: Positions of the commits among them, as far as the log has them.
        pages: Numbers of the pages in the log.
    """

    exists: bool
    indexed: bool
    frames: int
    commits: tuple[int, ...] = ()
    pages: frozenset[int] = frozenset()


def log_path(path: Path) -> Path:
    """Return the path of the log of a file."""
    return Path(f"{path}-wal")


def index_path(path: Path) -> Path:
    """Return the path of the index of that log."""
    return Path(f"{path}-shm")


class OpenIndex:
    """The index of the log of a file that this process has open, for many readings.

    It is closed after SQLite's connections: closing any descriptor of a file releases all locks that the
    process has on it. Without SQLite's, another process that opens the file takes it for one that no process
    uses, and truncates the index.
    """

    def __init__(self, path: Path) -> None:
        """Begin with the path of the file; the index is opened when it is first read."""
        self._path = index_path(path)
        self._descriptor: int | None = None

    def read(self) -> Index:
        """Read the index, which counts nothing if there is none, or its two headers differ."""
        with suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            return _index(os.pread(self._descriptor, _INDEX_BYTES, 0))
        return Index()

    def close(self) -> None:
        """Close it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_index(path: Path) -> Index:
    """Read the index of a file that no connection of this process has open, as `OpenIndex` does."""
    index = OpenIndex(path)
    try:
        return index.read()
    finally:
        index.close()


def _index(head: bytes) -> Index:
    size = _INDEX_HEADER.size
    if len(head) < _INDEX_BYTES or head[:size] != head[size : 2 * size]:
        return Index()
    in_use, page_bytes, frames, salts = _INDEX_HEADER.unpack_from(head)
    (moved,) = _INDEX_MOVED.unpack_from(head, 2 * size)
    return Index(frames, moved, salts, 65536 if page_bytes == 1 else page_bytes) if in_use else Index()


def read_written(path: Path) -> Written:
    """Read what was written to the log of a file; call before SQLite opens it."""
    index = read_index(path)
    has_index = index_path(path).exists()
    if not log_path(path).exists():
        return Written(exists=False, indexed=has_index, frames=index.frames)
    with log_path(path).open("rb") as file:
        head = os.pread(file.fileno(), _LOG_HEADER.size, 0)
        fits = _header_fits(head)
        salts, page_bytes = _generation(head) if fits else _spoilt(path, file, index)
        frames = [frame for frame in _frames(file, page_bytes) if frame.salts == salts]
        unknown = not fits and _has_more_than_header(file)
        # After a power failure, the index may be of an earlier generation of the log.
        indexed = index.frames if index.salts == salts else 0
        commits = tuple(frame.position for frame in frames if frame.commits)
        # SQLite writes the header of a frame before its page: a kill between leaves a commit that was none.
        if fits and commits and commits[-1] > indexed and not _frame_fits(file, head, commits[-1]):
            commits = commits[:-1]
    pages = frozenset(frame.page for frame in frames)
    counted = max(indexed, *commits, int(unknown))
    return Written(exists=True, indexed=has_index, frames=counted, commits=commits, pages=pages)


def _generation(head: bytes) -> tuple[bytes, int]:
    """Return salts and page size of the present generation of a log by its header."""
    _, page_bytes, salts, _ = _LOG_HEADER.unpack_from(head)
    return salts, page_bytes


def _spoilt(path: Path, file: BinaryIO, index: Index) -> tuple[bytes, int]:
    """Return salts and page size of a log whose header does not fit; a page size of 0 if it has no frames.

    SQLite takes it for empty. What it has is then told by the index, or else by the salts of most frames.
    The header is on the disk before the first frame is written, so without more than it there is nothing; an
    index beside it may then be of before all pages were moved: SQLite empties the log only after that, and a
    power failure leaves any state of the index.
    """
    if os.fstat(file.fileno()).st_size <= _LOG_HEADER.size:
        return b"", 0
    if index.frames:
        return index.salts, index.page_bytes
    page_bytes = _page_bytes(path)
    salts = Counter(frame.salts for frame in _frames(file, page_bytes) if any(frame.salts))
    return max(salts, key=salts.__getitem__, default=b""), page_bytes


def _has_more_than_header(file: BinaryIO) -> bool:
    """Return whether anything but zeros is behind the header: SQLite then has written a frame."""
    file.seek(_LOG_HEADER.size)
    return any(part.strip(b"\0") for part in iter(partial(file.read, _PART_BYTES), b""))


def _header_fits(head: bytes) -> bool:
    if len(head) < _LOG_HEADER.size:
        return False
    magic, page_bytes, _, checksum = _LOG_HEADER.unpack_from(head)
    if magic not in _MAGICS or page_bytes not in _PAGE_BYTES:
        return False
    return bool(checksum == _checksum(head[: -_CHECKSUM.size], magic, (0, 0)))


def _frame_fits(file: BinaryIO, head: bytes, position: int) -> bool:
    """Return whether a frame fits its checksum, if the one before it fits; `head` is the log's header."""
    magic, page_bytes, _, _ = _LOG_HEADER.unpack_from(head)
    step = _FRAME_HEADER.size + page_bytes
    at = _LOG_HEADER.size + (position - 1) * step
    before = at - _CHECKSUM.size if position == 1 else at - page_bytes - _CHECKSUM.size
    seed = _CHECKSUM.unpack(os.pread(file.fileno(), _CHECKSUM.size, before))
    frame = os.pread(file.fileno(), step, at)
    checked, checksum = _FRAME_CHECKED.unpack_from(frame)
    return bool(checksum == _checksum(checked + frame[_FRAME_CHECKED.size :], magic, (seed[0], seed[1])))


def _checksum(data: bytes, magic: int, seed: tuple[int, int]) -> bytes:
    """Return SQLite's checksum of what follows something with the checksum `seed`."""
    first, second = seed
    # The magic number says by its last bit in which order of bytes its writer took the words.
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & _WORD_MAX
        second = (second + other + first) & _WORD_MAX
    return _CHECKSUM.pack(first, second)


def _page_bytes(path: Path) -> int:
    """Return the size of the pages of a file; 0 if it does not say."""
    with suppress(OSError, struct.error), path.open("rb") as file:
        (size,) = _PAGE_SIZE.unpack(file.read(_PAGE_SIZE.size))
        size = 65536 if size == 1 else size
        return size if size in _PAGE_BYTES else 0
    return 0


def cut_log(path: Path, index: Index) -> None:
    """Cut off the log of a file what is behind the last commit, if there is a log, and the index is of it.

    Args:
        path: The file, to which nothing may write meanwhile.
        index: Index of the log.

    Raises:
        OSError: The log cannot be cut.
    """
    with suppress(FileNotFoundError), log_path(path).open("r+b") as file:
        head = os.pread(file.fileno(), _LOG_HEADER.size, 0)
        if _header_fits(head) and _generation(head) == (index.salts, index.page_bytes):
            end = _LOG_HEADER.size + index.frames * (_FRAME_HEADER.size + index.page_bytes)
            os.ftruncate(file.fileno(), min(end, os.fstat(file.fileno()).st_size))


def synced_pages(path: Path, index: Index, skipped: int) -> dict[int, bytes]:
    """Sync the log of a file to disk, then return its pages up to the last commit, by number.

    Args:
        path: The file, to which nothing may write meanwhile.
        index: Index of the log.
        skipped: Frames at its beginning to leave out.

    Raises:
        OSError: The log cannot be read or synced.
    """
    step = _FRAME_HEADER.size + index.page_bytes
    pages = {}
    with log_path(path).open("rb") as file:
        os.fdatasync(file.fileno())
        file.seek(_LOG_HEADER.size + skipped * step)
        for _ in range(index.frames - skipped):
            frame = file.read(step)
            if len(frame) < step:  # it has moved all pages itself, at the same moment
                raise OSError("another program has emptied it")
            page, _, _ = _FRAME_HEADER.unpack_from(frame)
            pages[page] = frame[_FRAME_HEADER.size :]
    return pages


def _frames(file: BinaryIO, page_bytes: int) -> Iterator[Frame]:
    """Yield the frames of all generations; none if the size of a page is not known."""
    size = os.fstat(file.fileno()).st_size if page_bytes else 0
    step = _FRAME_HEADER.size + page_bytes
    for position in range((size - _LOG_HEADER.size) // step):
        head = os.pread(file.fileno(), _FRAME_HEADER.size, _LOG_HEADER.size + position * step)
        page, pages, salts = _FRAME_HEADER.unpack(head)
        yield Frame(position + 1, page, pages > 0, salts)
