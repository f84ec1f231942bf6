"""Files and batches in one folder, together."""

import secrets
from pathlib import Path
from typing import Final

from qlm.domain.ports.clock import Clock
from qlm.gateway.files.disk.batches import DiskBatches
from qlm.gateway.files.disk.files import UPLOADS, DiskFiles
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.records import ID_BYTES, RandomHex
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


def write_in(root: Path) -> None:
    """Write a file into such a folder, where uploads are, and delete it.

    Raises:
        OSError: It cannot be written.
    """
    folder = root / UPLOADS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / secrets.token_hex(ID_BYTES)
    path.write_bytes(b"a byte")  # a full disk takes names
    path.unlink()
