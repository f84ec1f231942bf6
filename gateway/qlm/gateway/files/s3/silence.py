"""Silence of the storage: it takes calls, and answers none."""

import contextlib
from collections.abc import Iterator
from threading import Lock, get_ident

from qlm.domain.errors import StorageUnavailableError


class Silence:
    """State of the silence, as the calls of all threads find it.

    While it lasts, one call at a time tries. The others fail at once, also those that have tried: they would
    wait for nothing, and keep others from their thread.
    """

    def __init__(self) -> None:
        """Begin with a storage that answers."""
        self._lock = Lock()
        self._answers = 0
        self._lasts = False
        self._trier: int | None = None

    @contextlib.contextmanager
    def call(self, where: str) -> Iterator[None]:
        """Make a call while inside.

        Raises:
            StorageUnavailableError: The storage is silent, and another call tries.
        """
        with self._lock:
            if self._lasts and self._trier is not None:
                raise StorageUnavailableError(f"{where} does not answer")
            if self._lasts:
                self._trier = get_ident()
        try:
            yield
        finally:
            with self._lock:
                if self._trier == get_ident():
                    self._trier = None

    @property
    def answers(self) -> int:
        """Answers so far, and ends of connections."""
        return self._answers

    @property
    def may_try(self) -> bool:
        """True if the call of this thread may try again."""
        with self._lock:
            return not self._lasts or self._trier == get_ident()

    def heard(self) -> None:
        """Note an answer, or that a connection was refused or has ended."""
        with self._lock:
            self._answers += 1
            self._lasts = False

    def heard_nothing(self, answers: int) -> None:
        """Note a try whose time is over, and which began when there were so many answers.

        If no other call tries while the silence lasts, the call of this thread does.
        """
        with self._lock:
            self._lasts = self._lasts or self._answers == answers
            if self._lasts and self._trier is None:
                self._trier = get_ident()
