"""Files and batches in one folder, together."""

import secrets
from pathlib import Path

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.batches import DiskBatches
from qlm.gateway.files.disk.files import DiskFiles
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.records import RandomHex
from qlm.gateway.files.storage import Storage


def storage_in(
    root: Path, clock: Clock, limits: FileLimits | None = None, random_hex: RandomHex = secrets.token_hex
) -> Storage:
    """Return the files and batches in a folder, which several gateways may share."""
    files = DiskFiles(root, clock, random_hex)
    return Storage(files, DiskBatches(files, clock, random_hex), limits or FileLimits())
