"""A client of HTTP that writes bytes as they are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import orjson

ENDLESS_BYTES = 64 * 1024 * 1024
"""Bytes after which an endless client gives up."""

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
"""All of a request but its last headers and its body."""

PIECE = b"x" * 65_536


class Client:
    """A client that writes bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str, source: str = "127.0.0.1") -> "Client":
        parts = urlsplit(url)
        made = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(source, 0))
        return cls(*made)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def send_endlessly(self, piece: bytes) -> int:
        """Send until the gateway has had enough; return the bytes that it has taken."""
        sent = 0
        try:
            while sent < ENDLESS_BYTES and not self.reader.at_eof():
                self.writer.write(piece)
                await asyncio.wait_for(self.writer.drain(), 20)
                sent += len(piece)
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        return sent

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await asyncio.wait_for(self.reader.readexactly(length), 20)
        self.head = head.decode()
        return int(head.split()[1]), orjson.loads(body)

    async def refusal(self) -> tuple[int, str]:
        """Return status and code of the last answer, after which the connection ends."""
        status, body = await self.answer()
        assert "connection: close" in self.head and "x-request-id: " in self.head
        await self.ended()
        return status, body["error"]["code"]

    async def ended(self) -> None:
        """Wait until the gateway ends the connection, and end this side of it."""
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(self.reader.read(), 20) == b""
        self.writer.close()

    async def works(self) -> None:
        """Check that a request is answered."""
        self.send(HEALTH)
        assert (await self.answer())[0] == 200


Connect = Callable[..., Awaitable[Client]]
"""Connects to a URL, from a source address if one is given."""


@contextlib.asynccontextmanager
async def connecting() -> AsyncIterator[Connect]:
    """Yield a function that connects clients, all of which end with this."""
    clients: list[Client] = []

    async def connect(url: str, source: str = "127.0.0.1") -> Client:
        clients.append(await Client.connect(url, source))
        return clients[-1]

    yield connect
    for client in clients:
        client.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await client.writer.wait_closed()
