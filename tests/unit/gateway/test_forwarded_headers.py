"""Headers of proxies, which the gateway does not read."""

import asyncio
import socket

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from qlm.gateway.http.server import create_server, running


async def test_a_client_cannot_name_another_address_or_scheme() -> None:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.scope['client'][0]} {request.scope['scheme']}")

    app = Starlette(routes=[Route("/", answer)])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with running(create_server(app), listener), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            forwarded = b"x-forwarded-for: 192.0.2.1\r\nx-forwarded-proto: https\r\n"
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + forwarded + b"\r\n")
            said = await reader.read()
            writer.close()
    assert said.endswith(b"\r\n\r\n127.0.0.1 http")
