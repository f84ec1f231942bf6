"""Clients of `make chaos`: when they take a request for over."""

import random
import time

from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.chaos.client_request import ClientRequest
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.verdict import judge

ID = "req-1"
ENDED_BEFORE_S = 60.0


async def test_an_answer_that_is_deleted_after_its_end_is_gone_when_the_client_asks_for_it() -> None:
    one = ClientRequest(key="k", kind="async", tokens=12, slo=None, sent_s=time.monotonic() - ENDED_BEFORE_S)
    async with TestServer(_gateway()) as server:
        clients = Clients([str(server.make_url("")).rstrip("/")], random.Random(1), gone={ID})
        deleted_s = time.monotonic()
        await clients.carry(one)
        await clients.close()
    assert one.finish == "gone"
    verdict = judge([one], {ID: 1}, [(deleted_s, time.monotonic())])
    assert (verdict.gone, verdict.lost) == (1, 0)


def _gateway() -> web.Application:
    """Return a gateway whose only request ended long ago, and has lost its answer."""

    async def accept(request: web.Request) -> web.Response:
        return web.json_response({"id": ID}, status=202)

    async def record(request: web.Request) -> web.Response:
        ended_s = time.time() - ENDED_BEFORE_S
        return web.json_response({"status": "ended", "error": {"code": "output_lost"}, "ended_s": ended_s})

    app = web.Application()
    app.router.add_post("/v1/completions", accept)
    app.router.add_get("/v1/requests/{id}", record)
    return app
