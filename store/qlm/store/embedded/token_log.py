"""Token log of the embedded store: append-only files beside the queue file, one write per loop turn.

Segments are named by the incarnation that wrote them, and a number: `qlm.sqlite-tokens.INCARNATION.NUMBER`.
What was written survives a kill -9 of this process, since the kernel has it; it is not synced to disk.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import chain
from pathlib import Path
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import RequestId
from qlm.store.core.effects import Logged
from qlm.store.core.state import RestoredLog
from qlm.store.embedded.token_records import MAGIC, ended_record, extensions_record, frame, tokens_record
from qlm.store.embedded.token_segment import Moved, Segment, Write, unavailable

log = logging.getLogger("qlm.store")

SEGMENT_BYTES: Final = 16 * 2**20
"""Size at which a new segment begins."""

SEGMENTS_MAX: Final = 4
"""Beyond it, the logs of unfinished requests in the oldest segment are written again, into the newest."""

SLOW_NS: Final = 5_000_000
"""A write that takes longer was held up by the kernel, which writes back to disk."""

SLOW_FOR_NS: Final = 1_000_000_000
"""Time for which writes leave the event loop after two slow ones."""

Extended = tuple[RequestId, LogExtensions]
"""A request, and the optional fields of its log."""

WholeLog = Callable[[RequestId], RestoredLog | None]
"""Returns the log of a request whose end is not stored; None if it has no tokens."""


class TokenLog:
    """Token log of one incarnation, for one event loop.

    `write` blocks until the kernel has the bytes, some ten microseconds. `prepare` and `put` are its two
    halves: `put` may run in a thread, while nothing but `ended` is called.
    """

    def __init__(
        self,
        path: Path,
        incarnation: int,
        whole_log: WholeLog,
        *,
        write: Write = os.write,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Begin an empty log beside the queue file `path`.

        Raises:
            StoreUnavailableError: The file cannot be written.
        """
        self._stem = f"{path}-tokens.{incarnation}"
        self._monotonic_ns = monotonic_ns
        self._whole_log = whole_log
        self._write = write
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._numbers = 0
        self._ended: list[bytes] = []
        self._ended_prepared = 0
        self._ends = 0
        self._ends_written = 0
        self._refused = False
        self._last_was_slow = False
        self._slow_until_ns: int | None = None
        self._begin_segment()

    def slow(self) -> bool:
        """Return True if two writes in a row were slow lately."""
        return self._slow_until_ns is not None and self._monotonic_ns() < self._slow_until_ns

    def ids(self) -> Iterator[RequestId]:
        """Iterate over the requests that it has, perhaps repeatedly."""
        return chain.from_iterable(segment.ids for segment in self._segments)

    def restore(self, logs: Mapping[RequestId, RestoredLog]) -> None:
        """Begin with the logs of an earlier incarnation, and sync them to disk.

        Raises:
            StoreUnavailableError: They cannot be written.
        """
        self._write_whole(logs.items())
        self._segments[-1].sync()

    def write(self, logged: Iterable[Logged], extended: Iterable[Extended]) -> None:
        """Write tokens and optional fields of unfinished requests.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        self.put(self.prepare(logged, extended))
        self._delete_ended()

    def prepare(self, logged: Iterable[Logged], extended: Iterable[Extended]) -> bytes:
        """Encode what `put` writes next; begins a segment if the present one is full or was deleted.

        Raises:
            StoreUnavailableError: That segment cannot be written.
        """
        self._delete_ended()
        newest = self._segments[-1]
        if os.fstat(newest.fd).st_nlink == 0:
            self._replace_deleted(newest)
            newest = self._segments[-1]
        # Moved logs may be larger than a segment: they are not to be moved again for a few tokens more.
        if newest.size - newest.base >= max(self._segment_bytes, newest.base):
            self._begin_segment()
            self._move_oldest()
        ids, records = self._segments[-1].ids, list(self._ended)
        self._ended_prepared = len(records)
        for part in logged:
            ids.add(part.id)
            records.append(tokens_record(part))
        for id, extensions in extended:
            ids.add(id)
            records.append(extensions_record(id, extensions))
        return frame(b"".join(records))

    def put(self, data: bytes) -> None:
        """Write what `prepare` returned.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        began_ns = self._monotonic_ns()
        self._append(data)
        now_ns = self._monotonic_ns()
        slow = now_ns - began_ns > SLOW_NS
        if slow and self._last_was_slow:
            self._slow_until_ns = now_ns + SLOW_FOR_NS
        self._last_was_slow = slow

    def _append(self, data: bytes) -> None:
        segment = self._segments[-1]
        try:
            segment.write_all(self._write, data)
        except OSError as error:
            self._cut(segment)
            self._ended_prepared = 0
            self._refused = True
            raise unavailable(segment.path, error) from error
        self._refused = False
        segment.size += len(data)
        del self._ended[: self._ended_prepared]
        self._ends_written += self._ended_prepared
        self._ended_prepared = 0

    def ended(self, ids: Iterable[RequestId]) -> None:
        """Forget requests whose end is stored.

        Segments that have no others are deleted once a later write has said so: a segment without the first
        tokens of a request, and without its end, looks like damage. If a write fails, they are deleted before
        the next one, since the disk may be full: to `find`, a stored end is no damage.
        """
        for id in ids:
            known = [segment for segment in self._segments if id in segment.ids]
            if known:
                self._ended.append(ended_record(id))
                self._ends += 1
            for segment in known:
                segment.ids.discard(id)
                segment.ends = self._ends

    def _delete_ended(self) -> None:
        # Oldest first: the end of a request must not be deleted before its tokens.
        while len(self._segments) > 1 and self._has_ended(self._segments[0]):
            self._segments.pop(0).delete()

    def _has_ended(self, segment: Segment) -> bool:
        said = segment.ends <= self._ends_written or self._refused
        return said and not (segment.ids or segment.moved_to)

    def moved(self) -> Moved | None:
        """Return moved logs that are not synced; until `synced`, their former files are kept."""
        target = self._segments[0].moved_to if self._segments else None
        return None if target is None else Moved(target)

    def synced(self, moved: Moved) -> None:
        """Delete the former files of moved logs, once `moved.sync` has returned."""
        for segment in self._segments:
            if segment.moved_to is moved.to:
                segment.moved_to = None
        self._delete_ended()

    def delete(self) -> None:
        """Delete all files; nothing may be written any more."""
        while self._segments:
            self._segments.pop().delete()

    def _begin_segment(self) -> None:
        self._numbers += 1
        path = Path(f"{self._stem}.{self._numbers}")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._refused = True
            raise unavailable(path, error) from error
        segment = Segment(path, fd, len(MAGIC))
        try:
            segment.write_all(self._write, MAGIC)
        except OSError as error:
            segment.delete()
            self._refused = True
            raise unavailable(path, error) from error
        self._segments.append(segment)

    def _replace_deleted(self, deleted: Segment) -> None:
        """Begin a segment with all logs: the file of the newest was deleted, perhaps others too."""
        self._begin_segment()
        ids = set(self.ids())
        try:
            self._write_whole(self._whole_logs(ids))
        except StoreUnavailableError:
            self._segments.pop().delete()  # so that the next write tries again
            raise
        log.error(
            "the token log %s was deleted; the tokens of unfinished requests were written again, to %s",
            deleted.path,
            self._segments[-1].path,
        )
        self._empty_all_but_newest(ids)

    def _empty_all_but_newest(self, moved: Set[RequestId]) -> None:
        for segment in self._segments[:-1]:
            segment.ids -= moved
            if not segment.ids and segment.moved_to is None:
                segment.moved_to = self._segments[-1]

    def _move_oldest(self) -> None:
        """Write the logs in the oldest segment again if there are too many segments."""
        oldest = self._segments[0]
        if len(self._segments) <= SEGMENTS_MAX or oldest.moved_to is not None or not oldest.ids:
            return
        moved = oldest.ids.copy()
        self._write_whole(self._whole_logs(moved))
        self._empty_all_but_newest(moved)

    def _whole_logs(self, ids: Iterable[RequestId]) -> Iterator[tuple[RequestId, RestoredLog]]:
        for id in sorted(ids):
            if (whole := self._whole_log(id)) is not None:
                yield id, whole

    def _write_whole(self, logs: Iterable[tuple[RequestId, RestoredLog]]) -> None:
        """Write logs in place of what was written of them before."""
        ids, records = set[RequestId](), list[bytes]()
        for id, whole in logs:
            ids.add(id)
            records.append(tokens_record(Logged(id, 0, whole.token_ids, whole.first_token_ns)))
            if whole.extensions is not NO_LOG_EXTENSIONS:
                records.append(extensions_record(id, whole.extensions))
        if records:
            newest = self._segments[-1]
            self._append(frame(b"".join(records)))
            newest.ids |= ids
            newest.base = newest.size

    def _cut(self, segment: Segment) -> None:
        """Remove the part of a frame that was written; if that fails, write no more to this segment."""
        try:
            os.ftruncate(segment.fd, segment.size)
        except OSError:
            segment.size = segment.base + max(self._segment_bytes, segment.base)
