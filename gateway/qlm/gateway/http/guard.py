"""Checks of every HTTP request before its route: Host, Origin, content type, and the token of operators."""

from collections.abc import Callable, Collection
from itertools import chain
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qlm.gateway.api.callers import caller_errors, operator_errors
from qlm.gateway.core.access import AccessRules
from qlm.gateway.http.responses import error_answer

CORS_METHODS: Final = ("GET", "POST", "DELETE")
"""Methods that pages of accepted origins may use."""


class Guard:
    """Middleware that refuses callers that the rules of its listener do not accept."""

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        count: Callable[[int, str], None],
        anyone: Collection[str] | None = None,
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            rules: Callers it accepts.
            count: Counts a refusal, by status and code.
            anyone: Paths that are not for operators alone; None for all.
        """
        self._app = app
        self._rules = rules
        self._count = count
        self._anyone = anyone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the call, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope).getlist
        errors = caller_errors(headers, self._rules)
        if self._anyone is not None and scope["path"] not in self._anyone:
            errors = chain(errors, operator_errors(headers, self._rules))
        refusal = next(errors, None)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        self._count(refusal.status, refusal.code or "")
        await error_answer(refusal)(scope, receive, send)
