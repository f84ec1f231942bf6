"""Port to the file that makes the embedded store durable."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Journal(Protocol):
    """Durable map in one file, for state of the embedded store that must survive a crash."""

    @property
    def path(self) -> Path:
        """The file, beside which the store has its token log; no other process uses either meanwhile."""
        ...

    def load(self) -> Sequence[tuple[str, bytes]]:
        """Return all entries, in the order of their first write. Called once, before any write.

        Raises:
            StoreUnavailableError: The file cannot be read.
            UndecodableDataError: It is damaged.
        """
        ...

    def warnings(self) -> Sequence[str]:
        """Return what was lost of the file before it was opened, in a sentence each."""
        ...

    async def write(
        self, puts: Sequence[tuple[str, bytes]], deletes: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        """Put and delete entries, atomically and in the order of the calls.

        On return they survive a kill -9 of this process and, if `durable`, a power failure.

        Raises:
            StoreUnavailableError: Nothing was written: the file is closed, or the disk is full or broken.
        """
        ...
