"""HTTP connections whose clients keep to limits of size, count and time.

What is not yet parsed is bounded: the parser is fed no further once URL and headers are too large. So the
time that one client takes grows with the limits, not with what it sends.
"""

from typing import Any, Final, NoReturn

import httptools

from qlm.gateway.core.access import FORM_PATHS
from qlm.gateway.core.connection_limits import UNREAD_BYTES_MAX, Breach, Phase, Progress
from qlm.gateway.http.connections.body import BODY, Body
from qlm.gateway.http.connections.half_open import HalfOpenProtocol
from qlm.gateway.http.connections.http_1_0 import answer_unchunked
from qlm.gateway.http.connections.listener import REFUSED_MAX, Connections

LAST_REQUEST_S: Final = 0.25
"""Time, once the server stops, for a request that a client has sent on a connection without one."""


class BreachError(Exception):
    """A limit that was broken; ends the parsing of a connection."""


class LimitedProtocol(HalfOpenProtocol):
    """A connection of a listener with limits."""

    def __init__(self, connections: Connections, *arguments: Any, **named: Any) -> None:
        """Begin a connection of a listener."""
        super().__init__(*arguments, **named)
        self._listener = connections
        self._progress = Progress()
        self._breach: Breach | None = None
        self._unread_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or refuse it."""
        super().connection_made(transport)
        now_s = self.loop.time()
        self._progress.enter(Phase.NEW, now_s)
        admission = self._listener.open.admit(self, self._address(), now_s)
        if admission.closed is not None:
            admission.closed.transport.abort()
        if admission.breach is not None:
            self.refuse(admission.breach)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no longer."""
        self._listener.open.forget(self)
        self._listener.refused.discard(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Close the connection if it ends anyway; else see the base class."""
        return self._progress.phase is not Phase.ENDING and super().eof_received()

    @property
    def is_sent_a_body(self) -> bool:
        """Whether a request is not whole and not answered, beyond its headers."""
        return self._progress.phase is Phase.BODY and not self.cycle.response_started

    def shutdown(self) -> None:
        """End the connection as soon as its answer has ended.

        Without a request, it has a moment for one that is on its way: the client would see a reset, and not
        know whether it was served.
        """
        asking = self._progress.phase in (Phase.NEW, Phase.HEAD, Phase.WAITING)
        if asking and not self._waits_for_answer():
            self.loop.call_later(LAST_REQUEST_S, super().shutdown)
            return
        super().shutdown()
        if self._progress.phase is Phase.ENDING:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse, within the limits."""
        progress = self._progress
        if progress.phase is Phase.ENDING:
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        if progress.phase in (Phase.NEW, Phase.WAITING):
            progress.begin(self.loop.time())
            self._listener.open.busy(self)
        progress.framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
            self._keep_sizes()
        except (httptools.HttpParserError, BreachError):
            self.refuse(self._breach or Breach.MALFORMED)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._progress.begin(self.loop.time())

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._progress.url_bytes += len(url)
        self._keep_sizes()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        self._progress.add_header(name, value)
        self._keep_sizes()
        if self._progress.phase is Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve the request."""
        super().on_headers_complete()
        # The scope is a dictionary to which servers may add; its type names the keys of ASGI only.
        self.scope[BODY] = Body(self.cycle)  # type: ignore[typeddict-unknown-key]
        if self.scope["http_version"] == "1.0":
            answer_unchunked(self.cycle)
        if self._listener.stopping:
            self.cycle.keep_alive = False
        self._progress.enter(Phase.BODY, self.loop.time())

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._progress.body_bytes += len(body)
        self._progress.framing_bytes = 0
        if self.cycle.response_complete:
            self._drop(len(body))
            return
        if self.scope["path"] not in FORM_PATHS:
            for late in self._listener.open.receive(self, len(body)):
                if late is self:
                    self._stop(Breach.UNFINISHED)
                late.refuse(Breach.UNFINISHED)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is whole."""
        super().on_message_complete()
        self._listener.open.finish(self)
        self._progress.framing_bytes = 0
        self._progress.enter(Phase.WHOLE, self.loop.time())
        self._rest()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._listener.open.finish(self)
            self._rest()

    def end_requests(self) -> None:
        """Let requests that are not answered see that their client has gone, and write nothing more."""
        super().end_requests()
        for cycle in self._cycles:
            if cycle.disconnected:
                cycle.scope[BODY].leave()

    def check(self, now_s: float) -> None:
        """End what has lasted for too long."""
        progress, limits = self._progress, self._listener.limits
        if not progress.late(limits, now_s):
            return
        match progress.phase:
            case Phase.HEAD | Phase.BODY if self._waits_for_answer():
                progress.since_s = now_s
            case Phase.HEAD:
                self.refuse(Breach.HEADERS_LATE)
            case Phase.BODY if not self.cycle.response_complete:
                self.refuse(Breach.BODY_LATE)
            case Phase.ENDING:
                unsent = self.transport.get_write_buffer_size() > 0
                if not unsent or now_s - progress.since_s > limits.idle_timeout_s:
                    self.transport.abort()
            case _:
                self._end(now_s)
                self.transport.close()

    def refuse(self, breach: Breach) -> None:
        """Answer with an error if that is possible, and read no request any more."""
        now_s = self.loop.time()
        listener, answerable = self._listener, self._answerable()
        answer = listener.refuse(breach, self._address(), now_s)
        self._end(now_s)
        self.end_requests()
        if not answerable or len(listener.refused) >= REFUSED_MAX:
            self.transport.abort()
            return
        # The end of this side follows the answer. A closed socket would answer what still comes with a reset,
        # on which clients lose the answer.
        listener.refused.add(self)
        self.transport.write(answer)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _end(self, now_s: float) -> None:
        self._progress.enter(Phase.ENDING, now_s)
        self._listener.open.finish(self)
        self._listener.open.busy(self)

    def _address(self) -> str | None:
        return None if self.client is None else self.client[0]

    def _rest(self) -> None:
        """Wait for the next request if the last one is whole and answered."""
        if self._progress.phase is Phase.WHOLE and self.cycle.response_complete:
            self._progress.enter(Phase.WAITING, self.loop.time())
            self._listener.open.wait(self)
            self._unread_bytes = 0

    def _drop(self, count: int) -> None:
        """Count bytes that are not read; end the connection if they are too many."""
        self._unread_bytes += count
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self.transport.abort()

    def _keep_sizes(self) -> None:
        breach = self._progress.excess(self._listener.limits)
        if breach is not None:
            self._stop(breach)

    def _stop(self, breach: Breach) -> NoReturn:
        self._breach = breach
        raise BreachError(breach)

    def _waits_for_answer(self) -> bool:
        """Return whether a former request is to be answered before the rest of this one is read."""
        if self.flow.read_paused or self.pipeline:
            return True
        return (
            self._progress.phase is Phase.HEAD and self.cycle is not None and not self.cycle.response_complete
        )

    def _answerable(self) -> bool:
        """Return whether an answer can be written now: none has begun, and no other comes before it."""
        cycle = self.cycle
        if self.transport.is_closing():
            return False
        match self._progress.phase:
            case Phase.NEW | Phase.WAITING:
                return True
            case Phase.HEAD:
                return cycle is None or cycle.response_complete
            case Phase.BODY:
                return not (cycle.response_started or self.pipeline)
            case _:
                return False
