"""Failures of calls and turns by kind: the one way in which shells survive them.

A loop catches every `Exception` of a turn and passes it to `FaultLog.note`, then goes on with its next turn.
"""

import logging
import traceback
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from qlm.domain.errors import QlmError, UnavailableError

KINDS_MAX: Final = 1000
"""Kinds of failures that are remembered; further ones are counted and not logged."""


class FaultKind(StrEnum):
    """Kind of a failure, which decides what a shell does about it."""

    UNAVAILABLE = "unavailable"
    """A server is away; trying again later helps. The process logs its outage once, not each call."""

    REFUSED = "refused"
    """A server answered that it cannot do this, or with damaged data; trying again does not help."""

    BUG = "bug"
    """Anything else."""


def kind_of(error: Exception) -> FaultKind:
    """Return the kind of a failure."""
    if isinstance(error, UnavailableError | TimeoutError):
        return FaultKind.UNAVAILABLE
    return FaultKind.REFUSED if isinstance(error, QlmError) else FaultKind.BUG


class FaultLog:
    """Failures of one process: counted, and logged once per kind of failure.

    Two failures are of one kind if they have the same class and were raised at the same line.
    """

    def __init__(self, count: Callable[[FaultKind], None] = lambda _: None) -> None:
        """Begin without a failure.

        Args:
            count: Receives the kind of each failure.
        """
        self._count = count
        self._logged: set[tuple[str, ...]] = set()

    def note(
        self,
        log: logging.Logger,
        error: Exception,
        doing: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
    ) -> FaultKind:
        """Count a failure, and log it unless its kind was logged before.

        Args:
            log: The logger of the part.
            error: The failure.
            doing: What failed, in words, with `%s` for each of `args`.
            *args: Values in `doing`.
            extra: Fields of the log record.
        """
        kind = kind_of(error)
        self._count(kind)
        level = logging.DEBUG
        if kind is not FaultKind.UNAVAILABLE and self._is_new(error, doing):
            level = logging.ERROR
        trace = error if kind is FaultKind.BUG and level == logging.ERROR else None
        if log.isEnabledFor(level):
            log.log(level, doing + ": %s", *args, text_of(error), exc_info=trace, extra=extra)
        return kind

    def _is_new(self, error: Exception, doing: str) -> bool:
        frames = traceback.extract_tb(error.__traceback__, limit=-1)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = (type(error).__qualname__, where, doing)
        if key in self._logged or len(self._logged) >= KINDS_MAX:
            return False
        self._logged.add(key)
        return True


def text_of(error: Exception) -> str:
    """Return a failure in words: the message of an error of QLM, else its class and arguments."""
    return str(error) if isinstance(error, QlmError) else repr(error)
