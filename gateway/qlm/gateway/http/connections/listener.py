"""The connections of one HTTP listener: those open, and what was refused."""

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex
from typing import Final, Protocol

from qlm.gateway.core.connection_limits import Breach, ConnectionLimits
from qlm.gateway.core.open_connections import OpenConnections, RefusalNotes
from qlm.gateway.http.connections.refusals import answer_bytes, refusal

_log = logging.getLogger(__name__)

REFUSED_MAX: Final = 256
"""Refused connections that may still read why; further ones are cut."""


class Connection(Protocol):
    """A connection that can be ended for others."""

    transport: asyncio.Transport

    def __hash__(self) -> int: ...

    def refuse(self, breach: Breach) -> None:
        """Answer with an error if that is possible, and read no request any more."""


class Connections:
    """Connections of one listener, kept within their limits.

    Attributes:
        limits: Their limits.
        open: Those accepted.
        refused: Those that were refused and still read why.
        stopping: The listener is closed: each connection ends with the answer to its request.
    """

    def __init__(self, limits: ConnectionLimits, count: Callable[[int, str], None]) -> None:
        """Begin without a connection.

        Args:
            limits: Limits of all connections.
            count: Counts a refusal, by status and code.
        """
        self.limits = limits
        self.open: OpenConnections[Connection] = OpenConnections(limits)
        self.refused: set[Connection] = set()
        self.stopping = False
        self._count = count
        self._notes = RefusalNotes()

    def refuse(self, breach: Breach, address: str | None, now_s: float) -> bytes:
        """Count a refusal, log the first of its kind unless it is the client's mistake, return the answer."""
        error = refusal(breach, self.limits)
        self._count(error.status, breach)
        if breach is not Breach.MALFORMED and self._notes.first(breach, now_s):
            _log.warning("refused a client at %s: %s (%d %s)", address, error.message, error.status, breach)
        return answer_bytes(error, token_hex(8))

    def check(self, now_s: float) -> None:
        """Log how many more were refused within the last minute."""
        for breach, more in self._notes.due(now_s):
            _log.warning("refused %d more within a minute: %s", more, breach)
