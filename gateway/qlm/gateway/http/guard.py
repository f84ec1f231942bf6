"""Checks of every HTTP request before its route: Host, Origin, content type, and who is an operator."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qlm.domain.errors import QlmError
from qlm.gateway.api.callers import Headers as HeaderValues
from qlm.gateway.api.callers import caller_errors
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.core.access import FORM_PATHS, FORM_TYPE, JSON_TYPE, AccessRules
from qlm.gateway.http.responses import error_answer

CORS_METHODS: Final = ("GET", "POST", "DELETE")
"""Methods that pages of accepted origins may use."""

CORS_HEADERS: Final = {"access-control-expose-headers": "*", "vary": "Origin"}
"""Headers of refusals for such pages, beside the origin."""


class Guard:
    """Middleware that refuses callers that the rules of its listener do not accept."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        count: Callable[[int, str], None],
        answer: Callable[[str, ApiError], Response] = lambda path, error: error_answer(error),
        anyone: Collection[str] = (),
        not_operator: Callable[[HeaderValues], Awaitable[ApiError | None]] | None = None,
        page: Collection[str] = (),
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            rules: Callers it accepts.
            count: Counts a refusal, by status and code.
            answer: Returns the answer to a refused call to a path.
            anyone: Paths that are not for operators alone.
            not_operator: Returns the error of a caller who is no operator, by the headers; without it, no
                path is for operators alone.
            page: Paths of a page without data, which it loads itself, and anyone may load.
        """
        self._app = app
        self._rules = rules
        self._count = count
        self._answer = answer
        self._anyone = {*anyone, *page}
        self._not_operator = not_operator
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the call, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _values_of(scope)
        own_page, form = scope["path"] in self._page, scope["path"] in FORM_PATHS
        body_type = FORM_TYPE if form else JSON_TYPE
        refusal = next(caller_errors(headers, self._rules, own_page=own_page, body_type=body_type), None)
        if refusal is None and self._not_operator is not None and scope["path"] not in self._anyone:
            try:
                refusal = await self._not_operator(headers)
            except QlmError as error:
                refusal = from_qlm(error)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        self._count(refusal.status, refusal.code or "")
        answer = self._answer(scope["path"], refusal)
        answer.headers.update(headers_for_page(scope, self._rules))
        await answer(scope, receive, send)


def headers_for_page(scope: Scope, rules: AccessRules) -> dict[str, str]:
    """Return the headers with which a page of an accepted origin may read why it is refused."""
    origins = _values_of(scope)("origin")
    if len(origins) == 1 and rules.accepts_origin(origins[0]):
        return CORS_HEADERS | {"access-control-allow-origin": origins[0]}
    return {}


def _values_of(scope: Scope) -> HeaderValues:
    """Return a function with the values of headers by name, each decoded once."""
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return lambda name: found.get(name, ())
