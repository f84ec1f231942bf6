"""HTTP connections that ignore offers of another protocol, as HTTP/1.1 allows.

Some clients offer HTTP/2 with every request (`Connection: Upgrade`, `Upgrade: h2c`). The parser stops after
the head of such a request, and takes neither its body nor a further request. So it reads the head again,
without the offer.
"""

from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})


class NoUpgradeProtocol(HttpToolsProtocol):
    """A connection that stays with HTTP/1.1 whatever its client offers."""

    def data_received(self, data: bytes) -> None:
        """Parse data, or answer that it is no request."""
        self._unset_keepalive_if_required()
        try:
            self.feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def feed(self, data: bytes) -> None:
        """Parse data; if a request offers another protocol, from its head again without the offer.

        Raises:
            HttpParserError: It is no request, or asks for a tunnel.
        """
        rest: bytes | None = data
        while rest is not None:
            rest = self._parse(rest)

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is read again."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body of a request that has begun."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _parse(self, data: bytes) -> bytes | None:
        """Parse data; return what to parse next, if anything."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method = self.parser.get_method()
            if method == b"CONNECT":
                raise httptools.HttpParserError("a tunnel is asked for") from offer
            head = self._head(method)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return head + data[offer.args[0] :]
        return None

    def _head(self, method: bytes) -> bytes:
        """Return the head of the request that was just read, without its offer."""
        version = self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name not in _OFFERS]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"
