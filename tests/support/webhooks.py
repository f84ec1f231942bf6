"""A receiver of webhooks on loopback, which checks signatures with OpenAI's own client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import openai
import orjson
from aiohttp import web

from qlm.gateway.webhooks.signature import secret_key

SECRET: Final = "whsec_" + "c2VjcmV0IG9mIGEgdGVzdCwgbm8gbW9yZSB0aGFuIHRoYXQ="
KEY: Final = secret_key(SECRET)

Answer = Callable[[], Awaitable[web.StreamResponse]]


async def taken() -> web.StreamResponse:
    """Take an event."""
    return web.Response(status=204)


@dataclass(slots=True)
class Receiver:
    """Events that came, whatever was answered.

    Attributes:
        url: Where it listens.
        paths: Path of each attempt, with its query.
        headers: Headers of each attempt.
        events: Body of each attempt, which OpenAI's client has accepted.
        answer: Answers each attempt.
    """

    url: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    answer: Answer = taken
    _client: openai.OpenAI = field(
        default_factory=lambda: openai.OpenAI(api_key="any", webhook_secret=SECRET)
    )

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Answer an attempt."""
        body = await request.read()
        headers = dict(request.headers)
        event = self._client.webhooks.unwrap(body, headers)
        assert event.to_dict() == orjson.loads(body)
        self.paths.append(request.path_qs)
        self.headers.append(headers)
        self.events.append(event.to_dict())
        return await self.answer()

    def ids_of(self, type: str) -> list[str]:
        """Return whose events of a type came."""
        return [each["data"]["id"] for each in self.events if each["type"] == type]


@contextlib.asynccontextmanager
async def receiving(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Receiver]:
    """Run a receiver."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        receiver.url = f"http://{host}:{runner.addresses[0][1]}/hook"
        yield receiver
    finally:
        await asyncio.shield(runner.cleanup())
