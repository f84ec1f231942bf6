"""Files that a thread opens for a caller who may leave meanwhile."""

import threading
from collections.abc import Callable
from typing import BinaryIO, TypeVar

F = TypeVar("F", bound=BinaryIO)


class Opened:
    """A file that a thread opens for a caller, who may leave before it is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._given_up = False

    def keep(self, opens: Callable[[], F]) -> F:
        """Open it; close it again if the caller has left."""
        file = opens()
        with self._lock:
            self._file = file
            if self._given_up:
                file.close()
        return file

    def give_up(self) -> None:
        """Note that the caller has left."""
        with self._lock:
            self._given_up = True
            if self._file is not None:
                self._file.close()
