"""Syncs of files and folders."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Let what a file has, or the names in a folder, survive a power failure.

    Raises:
        OSError: It cannot be synced.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
