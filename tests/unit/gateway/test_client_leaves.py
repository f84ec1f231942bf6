"""Clients that leave before their answer, after a body so large that the server paused reading it."""

import asyncio
import socket

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from qlm.gateway.http.responses import WholeAnswer
from qlm.gateway.http.server import create_server, running
from qlm.gateway.http.sinks import WholeSink

FIRST_BYTES = 1_000
LAST_BYTES = 200_000
"""More than uvicorn buffers without a pause, and one read of the event loop at most."""


async def never(_: object) -> Response:
    raise AssertionError


async def test_a_client_is_missed_after_the_last_part_of_a_large_body() -> None:
    first, answering, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Response:
        async for _ in request.stream():
            first.set()
        answering.set()
        return WholeAnswer(WholeSink(), left.set, {}, never)

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with running(create_server(app), listener), asyncio.timeout(10):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            length = FIRST_BYTES + LAST_BYTES
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length)
            writer.write(bytes(FIRST_BYTES))
            await first.wait()
            writer.write(bytes(LAST_BYTES))
            await answering.wait()
            writer.transport.abort()
            await left.wait()
