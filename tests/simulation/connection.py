"""Connection of a client to a gateway: calls the ASGI application as a web server would."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from simulation.process import Process


class App(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one call."""
        ...


class ConnectionBrokenError(Exception):
    """The gateway died, or the client broke the connection."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a response."""

    status: int
    headers: Mapping[str, str]


class Exchange:
    """One request to a gateway, and its response."""

    def __init__(
        self, process: Process, app: App, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> None:
        """Send a request; header names have `_` for `-`."""
        self._body = body
        self._sent = False
        self._left = asyncio.Event()
        self._arrived = asyncio.Event()
        self._head: Head | None = None
        self._chunks: list[bytes] = []
        self._over = False
        self._process = process
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
            "client": ("client", 1),
            "server": ("gateway", 80),
        }
        self._task = process.spawn(app(scope, self._receive, self._send))
        self._task.add_done_callback(self._done)

    async def head(self) -> Head:
        """Wait for the status.

        Raises:
            ConnectionBrokenError: The connection broke before it.
        """
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Wait for a part of the body; empty at its end.

        Raises:
            ConnectionBrokenError: The connection broke before the end.
        """
        while not self._chunks:
            if self._over:
                return b""
            await self._wait()
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    async def body(self) -> bytes:
        """Wait for the whole body.

        Raises:
            ConnectionBrokenError: It is not complete.
        """
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def leave(self) -> None:
        """Break the connection."""
        self._left.set()
        self._arrived.set()

    async def _wait(self) -> None:
        self._arrived.clear()
        if self._left.is_set() or not self._process.alive or self._task.done():
            raise ConnectionBrokenError
        await self._arrived.wait()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the application has answered
        self._arrived.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._left.is_set() or not self._process.alive:
            return
        if message["type"] == "http.response.start":
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._head = Head(message["status"], headers)
        else:
            if message.get("body"):
                self._chunks.append(message["body"])
            self._over = not message.get("more_body", False)
        self._arrived.set()
