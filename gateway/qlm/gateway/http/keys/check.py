"""Middleware that asks clients for an API key, and gives its tenant to the routes."""

from collections.abc import Callable, Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qlm.domain.errors import QlmError
from qlm.domain.ports.api_keys import Scope as KeyScope
from qlm.domain.ports.clock import Clock
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.keys.asking import asked_key
from qlm.gateway.keys.key_ring import KeyRing

_TENANT: Final = "qlm.tenant"
"""Name in the scope of a call."""


class KeyCheck:
    """Middleware that refuses calls without an API key for clients."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        clock: Clock,
        count: Callable[[int, str], None],
        anyone: Collection[str],
        answer: Callable[[str, ApiError], Response],
    ) -> None:
        """Guard an application.

        Args:
            app: The application.
            keys: The keys.
            clock: The time.
            count: Counts a refusal, by status and code.
            anyone: Paths that need no key.
            answer: Returns the answer to a refused call to a path.
        """
        self._app = app
        self._keys = keys
        self._clock = clock
        self._count = count
        self._anyone = anyone
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the call, or pass it on with its tenant."""
        if scope["type"] != "http" or scope["path"] in self._anyone:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope).getlist
        try:
            key = await asked_key(self._keys, headers, KeyScope.INFER, self._clock.now_ns())
        except (ApiError, QlmError) as error:
            refusal = error if isinstance(error, ApiError) else from_qlm(error)
            self._count(refusal.status, refusal.code or "")
            await self._answer(scope["path"], refusal)(scope, receive, send)
            return
        scope[_TENANT] = key.tenant
        await self._app(scope, receive, send)


def key_tenant(request: HttpRequest) -> str | None:
    """Return the tenant of the API key that a call came with; None where no key is asked for."""
    tenant = request.scope.get(_TENANT)
    return tenant if isinstance(tenant, str) else None
