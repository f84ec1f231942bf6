"""Silence of the storage: it takes calls, and answers none."""

import contextlib
from collections.abc import Iterator
from threading import Lock

from qlm.domain.errors import StorageUnavailableError


class Silence:
    """State of the silence, as the calls of all threads find it.

    While it lasts, one call at a time tries. The others fail at once: they would wait for nothing.
    """

    def __init__(self) -> None:
        """Begin with a storage that answers."""
        self._lock = Lock()
        self._answers = 0
        self._lasts = False
        self._trying = False

    @contextlib.contextmanager
    def call(self, where: str) -> Iterator[None]:
        """Make a call while inside.

        Raises:
            StorageUnavailableError: The storage is silent, and another call tries.
        """
        with self._lock:
            tries = self._lasts
            if tries and self._trying:
                raise StorageUnavailableError(f"{where} does not answer")
            self._trying = self._trying or tries
        try:
            yield
        finally:
            if tries:
                with self._lock:
                    self._trying = False

    @property
    def answers(self) -> int:
        """Answers so far, and ends of connections."""
        return self._answers

    def heard(self) -> None:
        """Note an answer, or that a connection was refused or has ended."""
        with self._lock:
            self._answers += 1
            self._lasts = False

    def heard_nothing(self, answers: int) -> None:
        """Note a try whose time is over, and which began when there were so many answers."""
        with self._lock:
            self._lasts = self._lasts or self._answers == answers
