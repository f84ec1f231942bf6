"""TCP relay that can hold back one direction: `python -m benchmarks.chaos.relay CONTROL ROUTE...`.

CONTROL is the port for commands, a route `NAME:PORT:TARGET_PORT`; all on loopback. A command is one line:

- `hold NAME to` or `hold NAME from`: bytes to the server, or from it, do not arrive, ends of connections
  included. Nothing is dropped: as with lost packets, the sender sends again until they do.
- `pass NAME`: they arrive, late.
- `cut NAME`: all connections end with a reset; what was held back is lost.

The answer is `ok`.
"""

import asyncio
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Final

LOOPBACK: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 16
DIRECTIONS: Final = ("to", "from")


@dataclass(slots=True, kw_only=True)
class Route:
    """One relayed port, with its open connections."""

    port: int
    target: int
    open: dict[str, asyncio.Event] = field(default_factory=dict)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Let both directions pass."""
        for direction in DIRECTIONS:
            self.open[direction] = asyncio.Event()
            self.open[direction].set()

    async def serve(self) -> None:
        """Relay connections until cancelled."""
        async with await asyncio.start_server(self._relay, LOOPBACK, self.port) as server:
            await server.serve_forever()

    def hold(self, direction: str) -> None:
        """Hold one direction back."""
        self.open[direction].clear()

    def let_pass(self) -> None:
        """Let both directions pass."""
        for gate in self.open.values():
            gate.set()

    def cut(self) -> None:
        """Reset all connections, and let both directions of later ones pass."""
        for writer in self.writers:
            linger = struct.pack("ii", 1, 0)  # for 0 s: closing sends a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self.let_pass()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, to_server = await asyncio.open_connection(LOOPBACK, self.target)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, to_server}
        self.writers |= both
        try:
            await asyncio.gather(
                self._pump(reader, to_server, self.open["to"]),
                self._pump(upstream, writer, self.open["from"]),
            )
        finally:
            self.writers -= both
            for each in both:
                each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await gate.wait()
                writer.write(data)
                await writer.drain()
            await gate.wait()
            writer.write_eof()
        except OSError:
            writer.transport.abort()


def obey(routes: dict[str, Route], line: str) -> None:
    """Carry out a command."""
    match line.split():
        case ["hold", name, direction]:
            routes[name].hold(direction)
        case ["pass", name]:
            routes[name].let_pass()
        case ["cut", name]:
            routes[name].cut()
        case _:
            raise ValueError(f"unknown command {line!r}")


async def run(control_port: int, routes: dict[str, Route]) -> None:
    """Serve all routes and the control port until cancelled."""

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode().strip():
                obey(routes, line)
                writer.write(b"ok\n")
                await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_server(control, LOOPBACK, control_port) as server:
        await asyncio.gather(server.serve_forever(), *(route.serve() for route in routes.values()))


def main(arguments: list[str]) -> None:
    """Read the command line, and serve."""
    control, *named = arguments
    routes = {}
    for each in named:
        name, port, target = each.split(":")
        routes[name] = Route(port=int(port), target=int(target))
    asyncio.run(run(int(control), routes))


if __name__ == "__main__":
    main(sys.argv[1:])
