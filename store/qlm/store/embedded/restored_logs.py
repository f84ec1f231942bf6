"""Logs of unfinished requests from the token log that an earlier incarnation left."""

import re
import time
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, merged
from qlm.domain.ids import RequestId
from qlm.domain.shell.damage import DAMAGED, keep_copy
from qlm.store.core.state import RestoredLog
from qlm.store.embedded.token_records import Kind, Record, read_segment

_HAS_BOOT_TIME: Final = hasattr(time, "CLOCK_BOOTTIME")


@dataclass(frozen=True, slots=True)
class Found:
    """Token log of an earlier incarnation.

    Attributes:
        logs: Logs of requests whose end it does not have.
        damage: What is lost of it, in a sentence each.
        intact: Its files, to be deleted once the logs are stored again.
        damaged: Its files of which a copy is kept under another name.
        machine_restarted: The machine has started since it was written last. What had not reached the disk
            then is lost if that was no orderly start, and a file that ends between two frames is no damage.
    """

    logs: dict[RequestId, RestoredLog]
    damage: tuple[str, ...]
    intact: tuple[Path, ...]
    damaged: tuple[Path, ...]
    machine_restarted: bool = False

    def keep(self) -> None:
        """Keep copies of damaged files, named `.damaged`; call while the files still count.

        Raises:
            StoreUnavailableError: A file cannot be copied.
        """
        for path in self.damaged:
            with _refused(path, "copied"):
                keep_copy(path, Path(f"{path}{DAMAGED}"))

    def put_away(self) -> None:
        """Delete the files, once the logs are stored again.

        Raises:
            StoreUnavailableError: A file cannot be deleted.
        """
        for path in (*self.intact, *self.damaged):
            with _refused(path, "deleted"):
                path.unlink(missing_ok=True)


@contextmanager
def _refused(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"the token log {path} cannot be {what}: {error.strerror}") from error


def find(path: Path, incarnation: int | None, ended: Collection[RequestId] = ()) -> Found:
    """Read the token log beside a queue file whose last incarnation is given; None if it is new.

    Requests that have ended by the journal are no damage if they lack tokens: after a power failure, the log
    may have lost their end, which is not synced, and files with their tokens, which were then deleted. On a
    full disk, such files are deleted before that end is written.

    Segments of earlier incarnations are void: a version without a token log has used the file since. Those
    beside a new file belong to another one, so they are kept under another name.

    Raises:
        StoreUnavailableError: A file cannot be read.
    """
    if incarnation is None:
        return _foreign(tuple(segment for _, _, segment in _segments(path)))
    logs, damage, intact, damaged = LogAssembly(), list[str](), list[Path](), list[Path]()
    for written_by, _, segment in _segments(path):
        if written_by < incarnation:
            intact.append(segment)
            continue
        with _refused(segment, "read"):
            data = segment.read_bytes()
        read = read_segment(data)
        logs.add(read.records)
        if read.damaged_at is None:
            intact.append(segment)
            continue
        damaged.append(segment)
        damage.append(
            f"{segment}: the token log is damaged at byte {read.damaged_at} of {len(data)}; tokens of "
            f"unfinished requests behind it are lost; it is kept as {segment}.damaged"
        )
    if cut := logs.cut_short(ended):
        damage.append(f"{path}: its token log lacks tokens of {cut} unfinished requests")
    own = [segment for written_by, _, segment in _segments(path) if written_by >= incarnation]
    restarted = _last_written_s(own) < _machine_started_s()
    return Found(logs.whole(), tuple(damage), tuple(intact), tuple(damaged), restarted)


def _last_written_s(segments: Iterable[Path]) -> float:
    """Return when the last of some files was written, seconds since the epoch; `inf` if there is none."""
    with suppress(OSError):
        return max((each.stat().st_mtime for each in segments), default=inf)
    return inf


def _machine_started_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOT_TIME else -inf


def _foreign(segments: tuple[Path, ...]) -> Found:
    damage = (
        f"{segment}: the token log is of another queue file; it is not read, and kept as {segment}.damaged"
        for segment in segments
    )
    return Found({}, tuple(damage), (), segments)


def _segments(path: Path) -> list[tuple[int, int, Path]]:
    """List the segments beside a queue file in the order of writing, with incarnation and number."""
    name = re.compile(rf"{re.escape(path.name)}-tokens\.(\d+)\.(\d+)")
    with _refused(path.parent, "listed"):
        named = [(found, each) for each in path.parent.iterdir() if (found := name.fullmatch(each.name))]
    return sorted((int(found[1]), int(found[2]), each) for found, each in named)


class _Log:
    __slots__ = ("cut", "extensions", "first_token_ns", "tokens")

    def __init__(self) -> None:
        self.tokens = array("I")
        self.first_token_ns = 0
        self.extensions = NO_LOG_EXTENSIONS
        self.cut = False


class LogAssembly:
    """Logs by request, put together from records in the order in which they were written.

    A log that lacks tokens ends before them: what comes later is never joined to what came before.
    """

    def __init__(self) -> None:
        self._logs: dict[RequestId, _Log] = {}

    def add(self, records: Iterable[Record]) -> None:
        """Add records."""
        for record in records:
            match record.kind:
                case Kind.TOKENS:
                    self._add_tokens(record)
                case Kind.EXTENSIONS:
                    log = self._logs.setdefault(record.id, _Log())
                    log.extensions = merged(log.extensions, record.extensions or NO_LOG_EXTENSIONS)
                case Kind.ENDED:
                    self._logs.pop(record.id, None)

    def _add_tokens(self, record: Record) -> None:
        log = self._logs.setdefault(record.id, _Log())
        if record.offset == 0:
            if log.tokens:
                log = self._logs[record.id] = _Log()
            log.first_token_ns, log.cut = record.at_ns, False
        elif record.offset > len(log.tokens):
            log.cut = True
        if not log.cut:
            log.tokens[record.offset :] = array("I", record.token_ids)

    def whole(self) -> dict[RequestId, RestoredLog]:
        """Return the logs with tokens."""
        return {
            id: RestoredLog(tuple(log.tokens), log.first_token_ns, log.extensions)
            for id, log in self._logs.items()
            if log.tokens
        }

    def cut_short(self, ended: Collection[RequestId]) -> int:
        """Count the logs that lack tokens, but for those of ended requests."""
        return sum(log.cut and id not in ended for id, log in self._logs.items())
