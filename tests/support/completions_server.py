"""A server of completions whose answers a test writes."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from qlm.cli.bench.client import Target
from support.ports import free_port

Respond = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Target]:
    """Run a server whose completions answer as given."""

    async def completions(request: web.Request) -> web.StreamResponse:
        return await respond(request, await request.json())

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}, {"id": "n", "owned_by": "x"}]})

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", free_port())
        await site.start()
        yield Target(url=site.name, endpoint="/v1/completions", model="m", counts=False)
    finally:
        await runner.cleanup()


async def streamed(request: web.Request, tokens: int, *, end: bool = True) -> web.StreamResponse:
    """Stream tokens, with or without the end."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(tokens):
        await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
    if end:
        usage = {"prompt_tokens": 3, "completion_tokens": tokens}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
    return response
