"""HTTP connections whose client may end its side after the request and wait for the answer.

Such a half close looks like the end of a connection that the client has closed: a FIN in either case. Only
what is written afterwards shows the difference, since a closed socket answers with a reset. So a few bytes
that every client ignores are written: interim responses before an answer, comments in a stream of events.
"""

from asyncio import TimerHandle
from typing import Any, Final

from qlm.gateway.http.upgrades import NoUpgradeProtocol

PROBES_S: Final = (0.05, 0.2, 1.0)
"""Pauses, seconds. The first probe provokes the reset, and each further one would find it. Few, since clients
accept few interim responses."""

INTERIM: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
COMMENT: Final = b"2\r\n:\n\r\n"
"""One chunk of a body: a comment among server-sent events."""


class HalfOpenProtocol(NoUpgradeProtocol):
    """A connection that outlives the client's end of its own side while a request is answered."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._probe_timer: TimerHandle | None = None

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for an answer under way, if a probe can be written; return True if kept."""
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete and not cycle.more_body
        if not answering or self.scheme == "https" or self._probe() is None:
            return False
        cycle.keep_alive = False  # no other request can come
        self._probe_again(0)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop probing."""
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def _probe(self) -> bytes | None:
        """Return bytes that do not change the answer under way; None if there are none."""
        # Of requests that came at once, the first is answered.
        cycle = next((each for each in self._cycles if not each.response_complete), self.cycle)
        if not cycle.response_started:
            return INTERIM if cycle.scope["http_version"] == "1.1" else None
        return COMMENT if cycle.chunked_encoding else b""

    def _probe_again(self, sent: int) -> None:
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        self.transport.write(self._probe() or b"")
        if sent < len(PROBES_S):
            self._probe_timer = self.loop.call_later(PROBES_S[sent], self._probe_again, sent + 1)
