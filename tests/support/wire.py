"""A wire to a server that a test can cut: a TCP proxy on the loopback interface."""

import asyncio
import contextlib
from types import TracebackType


class Wire:
    """Passes bytes both ways; lives in the test's event loop, so the test must not block it."""

    def __init__(self, port: int) -> None:
        """Lead to `port` of the loopback interface."""
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.connections = 0

    def turn(self, port: int) -> None:
        """Lead new connections to another port; those that are open stay where they are."""
        self._target = port

    async def __aenter__(self) -> "Wire":
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def mend(self) -> None:
        """Take connections, at first and again after `cut`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def snap(self) -> None:
        """Break all connections at once; new ones are taken."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def cut(self) -> None:
        """Break all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
        self._flowing.set()
        while self._writers:  # one may just be opening
            self.snap()
            await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()

    def clog(self) -> None:
        """Keep the connections, but hold back all bytes until `unclog`."""
        self._flowing.clear()

    def unclog(self) -> None:
        """Let bytes pass again."""
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            self._drop(writer)
            return
        self._writers.add(far_writer)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        self._drop(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._writers.discard(writer)
