"""One file of the token log."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.shell.disk import sync

Write = Callable[[int, bytes], int]
"""Writes to a file descriptor, as `os.write`."""


@dataclass(slots=True, eq=False)
class Segment:
    """A file that is open for writing.

    Attributes:
        base: The part of its size that was moved from others.
        moved_to: The file with what was moved from here, until that file is synced to disk.
        ids: The requests whose tokens are here and were not moved.
        ends: How many ends of requests the token log is to have written before the file is deleted.
    """

    path: Path
    fd: int
    size: int = 0
    base: int = 0
    moved_to: "Segment | None" = None
    ids: set[RequestId] = field(default_factory=set)
    ends: int = 0

    def write_all(self, write: Write, data: bytes) -> None:
        """Write at the end; an OSError leaves the beginning of the data."""
        written = write(self.fd, data)
        while written < len(data):  # the disk is nearly full, or a signal came
            more = write(self.fd, data[written:])
            if more == 0:
                raise OSError(0, "nothing more can be written")
            written += more

    def sync(self) -> None:
        """Sync the file and its name to disk.

        Raises:
            StoreUnavailableError: It cannot be synced.
        """
        try:
            os.fsync(self.fd)
            sync(self.path.parent)
        except OSError as error:
            raise unavailable(self.path, error) from error

    def delete(self) -> None:
        """Close and delete the file; errors leave it."""
        with suppress(OSError):
            os.close(self.fd)
            self.path.unlink()


@dataclass(frozen=True, slots=True)
class Moved:
    """Logs that were moved to another file, where a power failure would lose them."""

    to: Segment

    def sync(self) -> None:
        """Sync that file to disk; may be called in a thread.

        Raises:
            StoreUnavailableError: It cannot be synced.
        """
        self.to.sync()


def unavailable(path: Path, error: OSError) -> StoreUnavailableError:
    """Return the error that names a file which cannot be written."""
    return StoreUnavailableError(f"the token log {path} cannot be written: {error.strerror}")
