"""When the client of a render tier takes it for away: refused connections count, slow calls do not."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qlm.gateway.api.errors import ApiError
from qlm.gateway.http.server import create_server
from qlm.gateway.render.breaker import FAILURES_MAX
from qlm.gateway.render.client import UNAVAILABLE, RenderClient
from support.gateway import SystemClock, serving
from support.ports import free_port


@pytest.fixture
async def url_with_slow_derendering() -> AsyncIterator[str]:
    go = asyncio.Event()

    async def render(request: Request) -> Response:
        return JSONResponse({"token_ids": [1]})

    async def derender(request: Request) -> Response:
        await go.wait()
        return JSONResponse({})

    routes = {"render": render, "derender": derender}
    app = Starlette(
        routes=[
            Route(f"/v1/chat/completions/{name}", route, methods=["POST"]) for name, route in routes.items()
        ]
    )
    async with serving(create_server(app)) as url:
        yield url
        go.set()


async def test_calls_that_time_out_do_not_open_the_breaker_for_others(url_with_slow_derendering: str) -> None:
    client = RenderClient(url_with_slow_derendering, "m", SystemClock(), timeout_s=0.05)
    calls = [client.derender({}) for _ in range(FAILURES_MAX)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for error in errors:
        assert isinstance(error, ApiError)
        assert error.code == UNAVAILABLE, "an answer that waits tries again"
        assert "within 0.05 s" in str(error)
    assert (await client.render({}))["token_ids"] == [1]
    await client.close()


async def test_refused_connections_open_it() -> None:
    client = RenderClient(f"http://127.0.0.1:{free_port()}", "m", SystemClock())
    for _ in range(FAILURES_MAX):
        with pytest.raises(ApiError, match="it does not answer"):
            await client.render({})
    with pytest.raises(ApiError, match="it did not answer the last calls"):
        await client.render({})
    await client.close()


async def test_an_overflow_that_vllm_finds_is_one_like_any_other() -> None:
    """As vLLM 0.32 refuses a prompt beyond its context."""
    message = (
        "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 "
        "input tokens, which exceeds this limit even without any output tokens."
    )

    async def render(request: Request) -> Response:
        return JSONResponse({"error": {"message": message, "param": "input_tokens"}}, 400)

    app = Starlette(routes=[Route("/v1/chat/completions/render", render, methods=["POST"])])
    async with serving(create_server(app)) as url:
        client = RenderClient(url, "m", SystemClock())
        with pytest.raises(ApiError) as caught:
            await client.render({})
        await client.close()
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert caught.value.message == message
    assert str(caught.value.anthropic_message).startswith("prompt is too long")
