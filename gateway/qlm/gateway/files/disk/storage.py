"""Files and batches in one folder, together."""

import secrets
from pathlib import Path
from typing import Final

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.batches import DiskBatches
from qlm.gateway.files.disk.files import DiskFiles
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.records import RandomHex
from qlm.gateway.files.storage import Storage
from qlm.gateway.files.threads import DaemonThreads

_THREADS: Final = 8


def storage_in(
    root: Path, clock: Clock, limits: FileLimits | None = None, random_hex: RandomHex = secrets.token_hex
) -> Storage:
    """Return the files and batches in a folder, which several gateways may share."""
    files = DiskFiles(root, clock, random_hex)
    batches, threads = DiskBatches(files, clock, random_hex), DaemonThreads(_THREADS, "qlm-files")
    return Storage(files, batches, limits or FileLimits(), threads)
