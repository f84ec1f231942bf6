"""Lock of a file for one process, which ends with that process."""

import fcntl
import os
from pathlib import Path

from qlm.domain.errors import BrokerUnavailableError


class ProcessLock:
    """Exclusive `flock` on a file beside the guarded one; the kernel frees it when the process ends."""

    def __init__(self, guarded: Path) -> None:
        """Acquire the lock; the lock file has the name of the guarded one with `-lock` appended.

        Raises:
            BrokerUnavailableError: Another process (or another opener in this one) has the lock, or the
                folder cannot be written.
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
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._fd)
            raise BrokerUnavailableError(f"cannot write {lock}: {error.strerror}") from error

    def release(self) -> None:
        """Release the lock."""
        # The lock file stays: deleting it could allow two openers.
        os.close(self._fd)
