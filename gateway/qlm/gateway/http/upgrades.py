"""HTTP connections that ignore offers of another protocol, as HTTP/1.1 allows.

Some clients offer HTTP/2 with every request (`Connection: Upgrade`, `Upgrade: h2c`). httptools stops after
the head of such a request and reads no body. So the head is read again, without the offer.
"""

from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})


class Http1Parser:
    """A parser of requests that stays with HTTP/1.1 whatever the client offers."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        """Begin a connection; `protocol` gets its requests."""
        self._protocol = protocol
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse data.

        Raises:
            HttpParserError: It is no request, or asks for a tunnel.
        """
        rest: bytes | None = data
        while rest is not None:
            rest = self._feed(rest)

    def get_method(self) -> bytes:
        """Return the method of the request."""
        method: bytes = self._parser.get_method()
        return method

    def get_http_version(self) -> str:
        """Return the version of the request."""
        version: str = self._parser.get_http_version()
        return version

    def should_keep_alive(self) -> bool:
        """Return whether the connection stays open after the answer."""
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        """Return False: nothing but HTTP/1.1 is spoken here."""
        return False

    def on_message_begin(self) -> None:
        """Begin a request, or its head anew."""
        self._url, self._headers = b"", []
        self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._url += url
        self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers.append((name, value))
        self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to serve the request, unless its head is read again."""
        if not self._parser.should_upgrade():
            self._protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        """End the body of a request that is served."""
        if not self._parser.should_upgrade():
            self._protocol.on_message_complete()

    def _feed(self, data: bytes) -> bytes | None:
        """Parse data; return the data to parse next, if any."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("a tunnel is asked for") from offer
            head = self._head()
            self._parser = self._new_parser()
            return head + data[offer.args[0] :]
        return None

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # As uvicorn does, for requests that follow one with `Connection: close`.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head(self) -> bytes:
        """Return the head that was just read, without its offer."""
        version = self._parser.get_http_version().encode()
        lines = [self._parser.get_method() + b" " + self._url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self._headers if name.lower() not in _OFFERS]
        connection = [value.lower() for name, value in self._headers if name.lower() == b"connection"]
        if any(b"close" in value for value in connection):
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"


class NoUpgradeProtocol(HttpToolsProtocol):
    """A connection that stays with HTTP/1.1."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parser = Http1Parser(self)  # type: ignore[assignment]
        self._cycles: list[Any] = []

    def on_headers_complete(self) -> None:
        """Begin a request, and remember it until it is answered."""
        super().on_headers_complete()
        self._cycles = [each for each in self._cycles if not each.response_complete]
        self._cycles.append(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all requests of the client; uvicorn ends only the last of those that came at once."""
        self.end_requests()
        super().connection_lost(exc)

    def end_requests(self) -> None:
        """Let requests that are not answered see that their client has gone, and write nothing more."""
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected, cycle.waiting_for_100_continue = True, False
                cycle.message_event.set()
