"""Errors of routes of Anthropic's API, in its shape."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Final, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.domain.errors import QlmError
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.api.messages_api.objects import error_object
from qlm.gateway.http.responses import Json
from qlm.gateway.sessions.gateway import Gateway

MESSAGES: Final = "/v1/messages"
"""How the paths of Anthropic's API begin."""

R = TypeVar("R", bound=Response)
Handler = Callable[[Gateway, HttpRequest], Awaitable[R]]


def error_answer(error: ApiError, request_id: str) -> Response:
    """Return the answer for an error; an id that the error has already wins."""
    headers = {**id_headers(request_id), **error.headers}
    id = headers["x-request-id"]
    return Json(error_object(error, id), {**headers, "request-id": id}, error.status)


def id_headers(request_id: str) -> Mapping[str, str]:
    """Return the headers that name a request: Anthropic's clients read the first, all others the second."""
    return {"request-id": request_id, "x-request-id": request_id}


def in_its_shape(handler: Handler[R]) -> Handler[R | Response]:
    """Return a handler that answers the errors of another one in Anthropic's shape."""

    @wraps(handler)
    async def shaped(gateway: Gateway, request: HttpRequest) -> R | Response:
        try:
            return await handler(gateway, request)
        except ApiError as error:
            return error_answer(error, gateway.new_id())
        except QlmError as error:
            return error_answer(from_qlm(error), gateway.new_id())

    return shaped
