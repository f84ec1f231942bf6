"""Routes without parameters: which calls the table answers, and what becomes of errors."""

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from qlm.gateway.http.routes import LiteralRoutes


async def _passed_on(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("passed on")(scope, receive, send)


async def _answered(request: Request) -> Response:
    if error := request.query_params.get("error"):
        raise {"lookup": KeyError, "other": OSError}[error]("it failed")
    return PlainTextResponse("answered")


async def _error(request: Request, error: Exception) -> Response:
    return PlainTextResponse(type(error).__name__, status_code=400)


def _client() -> httpx.AsyncClient:
    routes = [("POST", "/a", _answered), ("GET", "/a/{id}", _answered)]
    app = LiteralRoutes(_passed_on, routes, {LookupError: _error})
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://qlm")


async def test_only_calls_of_a_route_without_parameters_are_answered_from_the_table() -> None:
    async with _client() as client:
        assert (await client.post("/a")).text == "answered"
        assert (await client.get("/a")).text == "passed on"  # which names the methods of the path
        assert (await client.get("/a/{id}")).text == "passed on"
        assert (await client.get("/a/1")).text == "passed on"
        assert (await client.post("/a/")).text == "passed on"


async def test_an_error_is_answered_by_its_nearest_class_and_a_defect_is_raised() -> None:
    async with _client() as client:
        answer = await client.post("/a?error=lookup")
        assert (answer.status_code, answer.text) == (400, "KeyError")
        with pytest.raises(OSError, match="it failed"):
            await client.post("/a?error=other")
