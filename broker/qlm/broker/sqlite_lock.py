"""A lock that keeps a file to one process, for as long as that process lives."""

import fcntl
import os
from pathlib import Path

from qlm.domain.errors import BrokerUnavailableError


class ProcessLock:
    """An exclusive `flock` on a file beside the guarded one; the kernel frees it, however its holder ends."""

    def __init__(self, guarded: Path) -> None:
        """Take the lock.

        Args:
            guarded: The file to keep; the lock file has `-lock` appended to its name.

        Raises:
            BrokerUnavailableError: Another process (or another opener in this one) has it, or the folder
                cannot be written.
        """
        lock = guarded.with_name(guarded.name + "-lock")
        try:
            self._fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BrokerUnavailableError(f"cannot open the queue file {guarded}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise BrokerUnavailableError(
                f"the queue file {guarded} is in use by process {holder}; only one process may open it"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back. The lock file stays: deleting it could let two openers in."""
        os.close(self._fd)
