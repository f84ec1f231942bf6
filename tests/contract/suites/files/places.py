"""Places for files and batches under test."""

import os
from pathlib import Path
from typing import Protocol

from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.port import Claim
from qlm.gateway.files.storage import Storage
from support.gateway import SystemClock


class MovedClock(SystemClock):
    """The clock of the machine, moved on by a test."""

    def __init__(self) -> None:
        self.extra_s = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.extra_s * 10**9


class Place(Protocol):
    """A place that several gateways share."""

    clock: MovedClock

    def storage(self) -> Storage:
        """Return the files and batches of one more gateway."""

    def let_run_out(self, claim: Claim) -> None:
        """Let a claim be as old as if its gateway had died long ago."""

    def content(self) -> list[str]:
        """Return the names of all that is stored."""


class DiskPlace:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock = MovedClock()

    def storage(self) -> Storage:
        return storage_in(self._folder, self.clock)

    def let_run_out(self, claim: Claim) -> None:
        (path,) = self._folder.glob(f"*/batches/*/claim-{claim.number:06d}")
        path.write_bytes(b"another boot")  # as of another machine: its lock is not seen
        os.utime(path, (0, 0))

    def content(self) -> list[str]:
        return sorted(
            str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()
        )
