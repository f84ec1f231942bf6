"""Client of an engine's token streams: connections kept for the next request, and what is sent over them."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from qlm.agents.engines.http.connection import Connection, LostError, Take

LARGE_BYTES: Final = 1024 * 1024
"""Size from which a request, such as one with images, is let go once it is sent."""

STALE_RETRIES_MAX: Final = 2
"""Times that a request is sent again which an engine never read, since it had closed the kept connection."""


class StreamClient:
    """Requests to one address of an engine whose answers are streams.

    Create it inside the event loop that will use it. There is no limit of connections, nor of the time of an
    answer: the agent has both.
    """

    def __init__(
        self, base_url: str, path: str, headers: Mapping[str, str], *, connect_s: float, idle_max_s: float
    ) -> None:
        """Connect at the first request.

        Args:
            base_url: Such as `http://127.0.0.1:8100`; user and password are sent as Basic authorization.
            path: Path of the requests.
            headers: Headers of each request.
            connect_s: Limit for connecting.
            idle_max_s: Longest idle time of a connection that is used again.
        """
        url = urlsplit(base_url)
        self._secure = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.hostname or "", url.port or (443 if self._secure else 80)
        lines = {"host": url.netloc.rpartition("@")[2], **headers}
        if url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}"
            lines["authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        self._head = f"POST {url.path}{path} HTTP/1.1\r\n" + _lines(lines)
        self._connect_s = connect_s
        self._idle_max_s = idle_max_s
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._closed = False

    async def post(self, body: bytes, headers: Mapping[str, str], take: Take) -> None:
        """Send a request, and pass on the body of its answer until it ends; if cancelled, close.

        Raises:
            LostError: The engine cannot be reached, or the connection ended before the answer.
            EngineRefusedError: The engine answered with a status that is a fault of the request.
            StatusError: It answered with another status than 200.
            Exception: What `take` raised.
        """
        head = f"{self._head}{_lines(headers)}content-length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        large = len(request) > LARGE_BYTES
        del body
        for retries_left in reversed(range(STALE_RETRIES_MAX + 1)):
            connection = (None if large else self._kept()) or await self._connect()
            try:
                ended = connection.send(request, take)
                if large:
                    request = b""  # a new connection is not stale, and the answer may take minutes
                await ended
            except LostError as error:
                if self._closed:
                    raise LostError("its client is closed", began=error.began) from error
                # The engine had closed the kept connection: it has not seen this request, which is sent again
                # under the same id.
                if error.began or not (connection.served and retries_left):
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                return
            finally:
                self._open.discard(connection)
                if connection.reusable:
                    self._idle.append(connection)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for connection in (*self._idle, *self._open):
            connection.close("its client is closed")
        self._idle.clear()

    def _kept(self) -> Connection | None:
        """Take the connection that was used last; close those that were idle for too long."""
        least_s = asyncio.get_running_loop().time() - self._idle_max_s
        self._idle = [each for each in self._idle if each.reusable]
        while self._idle and self._idle[0].idle_since_s < least_s:
            self._idle.pop(0).close()
        if not self._idle:
            return None
        connection = self._idle.pop()
        self._open.add(connection)
        return connection

    async def _connect(self) -> Connection:
        if self._closed:
            raise LostError("its client is closed", began=False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), self._host, self._port, ssl=self._secure
                )
        except TimeoutError as error:
            raise LostError(f"no connection within {self._connect_s:g} s", began=False) from error
        except OSError as error:
            raise LostError(repr(error), began=False) from error
        self._open.add(connection)
        if self._is_closed():  # meanwhile
            connection.close("its client is closed")
        return connection

    def _is_closed(self) -> bool:
        return self._closed


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
