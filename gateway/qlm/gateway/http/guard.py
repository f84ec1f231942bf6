"""Checks of every HTTP request before its route: Host, Origin, content type."""

from collections.abc import Iterator
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, shown
from qlm.gateway.core.access import AccessRules, is_json
from qlm.gateway.http.responses import error_answer

CORS_METHODS: Final = ("GET", "POST", "DELETE")
"""Methods that pages of accepted origins may use."""


class Guard:
    """Middleware that refuses callers that the rules of its listener do not accept."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the call, or pass it on."""
        refusal = next(refusals(Headers(scope=scope), self._rules), None) if scope["type"] == "http" else None
        await (self._app if refusal is None else error_answer(refusal))(scope, receive, send)


def refusals(headers: Headers, rules: AccessRules) -> Iterator[ApiError]:
    """Yield the errors of a request: a strange Host or Origin, a body that is not said to be JSON."""
    for host in headers.getlist("host"):
        if not rules.accepts_host(host):
            message = f"Host is {shown(host)}; expected localhost, an address, or one of allowed_hosts"
            yield ApiError(status=421, message=message, code="host_not_allowed")
    for origin in headers.getlist("origin"):
        if not rules.accepts_origin(origin):
            message = f"Origin is {cut(origin)!r}; expected one of http.allowed_origins, or no web page"
            yield ApiError(status=403, message=message, code="origin_not_allowed")
    content_type = headers.get("content-type", "")
    if _has_body(headers) and not is_json(content_type):
        message = f"content-type is {shown(content_type)}; expected application/json"
        yield ApiError(status=415, message=message, param="content-type", code="unsupported_media_type")


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0 ") != ""
