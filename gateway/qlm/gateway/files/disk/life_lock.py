"""Locks that end with their process, however it ends: who has died is known at once on the same machine.

The file names the boot of its machine, since other machines may not see the lock (NFS).
"""

import fcntl
import os
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> bytes:
    """Return what the processes of this machine have in common until it starts again; empty if unknown."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b""


class LifeLock:
    """A new file that its process has locked until it ends or releases the file."""

    def __init__(self, path: Path) -> None:
        """Make and lock the file.

        Raises:
            FileExistsError: There is one.
            OSError: It cannot be written; it is then gone.
        """
        self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: only its time of change tells
            return
        try:
            os.write(self._descriptor, this_boot())  # after the lock: this never stands there without it
        except BaseException:
            path.unlink(missing_ok=True)
            self.release()
            raise

    def release(self) -> None:
        """Give up the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def has_died(path: Path) -> bool:
    """Return whether the process with this lock ran on this machine and has ended, or released it."""
    with path.open("rb") as file:
        boot = this_boot()
        if not boot or file.read() != boot:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
