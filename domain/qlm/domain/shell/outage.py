"""Log of outages of one server: one line when it goes, one when it is back."""

import logging
from typing import Final

_log = logging.getLogger(__name__)

QUIET_S: Final = 5.0
"""Time without a failed call after which a server is back: it may answer reads while it cannot write."""


class Outage:
    """State of one server as the calls of this process find it."""

    def __init__(self, server: str) -> None:
        """Begin with a server that works, named `server` in the log."""
        self._server = server
        self._since_s: float | None = None
        self._failed_s = 0.0
        self._lost: set[object] = set()

    @property
    def lasts(self) -> bool:
        """True if the server was away and is not back yet."""
        return self._since_s is not None

    def failed(self, now_s: float, why: object) -> None:
        """Note a call that found it away, at a time of a steady clock in seconds."""
        self._failed_s = now_s
        if self._since_s is None:
            self._since_s = now_s
            _log.warning("the %s is away: %s", self._server, why)

    def lost(self, connection: object, now_s: float, why: object) -> None:
        """Note that a connection is lost, or cannot be made again; until `restored` the server is away."""
        self._lost.add(connection)
        self.failed(now_s, why)

    def restored(self, connection: object, now_s: float) -> None:
        """Note that a connection is there again, or not needed any more."""
        if connection in self._lost:
            self._lost.discard(connection)
            self._failed_s = now_s

    def worked(self, now_s: float) -> None:
        """Note a call that was done."""
        if self._since_s is not None and not self._lost and now_s - self._failed_s >= QUIET_S:
            _log.warning("the %s is back after %.0f s", self._server, self._failed_s - self._since_s)
            self._since_s = None
