"""Places for files and batches under test."""

import os
from pathlib import Path
from typing import Protocol

from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.port import Claim
from qlm.gateway.files.records import CLAIM_TTL_S
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.storage import storage_of_bucket
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
        """Let a claim be, for the gateways that come, as old as if its gateway had died long ago."""

    def content(self) -> list[str]:
        """Return the names of all that is stored."""


class S3Place:
    """A bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._next_takes_all = False
        self.clock = MovedClock()

    def storage(self) -> Storage:
        ttl_s = -1.0 if self._next_takes_all else CLAIM_TTL_S
        self._next_takes_all = False
        return storage_of_bucket(self._bucket, self.clock, claim_ttl_s=ttl_s)

    def let_run_out(self, claim: Claim) -> None:
        """Let the next gateway take the claim for one that has run out: times of objects are not ours."""
        self._next_takes_all = True

    def content(self) -> list[str]:
        return self._bucket.keys("")


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
