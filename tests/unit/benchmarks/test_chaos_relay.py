"""Relays of `make chaos`: one direction is held back, and what was held arrives late or never."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from benchmarks.chaos.relay import LOOPBACK, Route, obey
from qlm.domain.shell.tasks import end_tasks
from support.flaky import until
from support.ports import free_port


class Echo:
    """A server that keeps what arrives, and sends it back."""

    def __init__(self) -> None:
        self.port = free_port()
        self.arrived = b""
        self.ended = 0

    async def serve(self) -> None:
        async with await asyncio.start_server(self._answer, LOOPBACK, self.port) as server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            self.arrived += data
            writer.write(data)
        self.ended += 1
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    task = asyncio.create_task(made.serve())
    yield made
    await end_tasks([task])


@pytest.fixture
async def route(echo: Echo) -> AsyncIterator[Route]:
    made = Route(port=free_port(), target=echo.port)
    task = asyncio.create_task(made.serve())
    yield made
    await end_tasks([task])


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def connect(route: Route) -> AsyncIterator[Connect]:
    """Open connections through the relay, as soon as it listens."""
    opened: list[asyncio.StreamWriter] = []

    async def once() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(10):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(LOOPBACK, route.port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                opened.append(writer)
                return reader, writer

    yield once
    for writer in opened:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    await until(lambda: not route.writers)


async def test_bytes_pass_both_ways_and_an_end_too(echo: Echo, connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.write_eof()
    assert await reader.read() == b""
    assert echo.ended == 1


async def test_what_is_held_on_its_way_to_the_server_arrives_late(
    echo: Echo, route: Route, connect: Connect
) -> None:
    reader, writer = await connect()
    obey({"r": route}, "hold r to")
    writer.write(b"late")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    assert echo.arrived == b""
    obey({"r": route}, "pass r")
    assert await reader.readexactly(4) == b"late"


async def test_the_server_acts_though_its_answer_is_held(echo: Echo, route: Route, connect: Connect) -> None:
    reader, writer = await connect()
    obey({"r": route}, "hold r from")
    writer.write(b"done")
    await until(lambda: echo.arrived == b"done")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.2)
    obey({"r": route}, "cut r")
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    reader, writer = await connect()
    writer.write(b"new")
    assert await reader.readexactly(3) == b"new"


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="stop"):
        obey({}, "stop r")
