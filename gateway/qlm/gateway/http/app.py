"""The ASGI applications of a gateway, for clients and for operators: their routes and error handlers."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from qlm.domain.errors import QlmError
from qlm.domain.shown import cut
from qlm.gateway.api.callers import Headers as HeaderValues
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.api.suggestions import meant_path
from qlm.gateway.batches.runner import batches_running
from qlm.gateway.core.access import AccessRules
from qlm.gateway.http.connections.body import BODY
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.http.guard import CORS_METHODS, Guard, headers_for_page
from qlm.gateway.http.keys.check import KeyCheck
from qlm.gateway.http.messages_api.errors import MESSAGES
from qlm.gateway.http.messages_api.errors import error_answer as message_error
from qlm.gateway.http.page.files import open_paths
from qlm.gateway.http.page.handlers import LivePage
from qlm.gateway.http.responses import error_answer
from qlm.gateway.http.routes import (
    ADMIN_DOCUMENT_ROUTES,
    ADMIN_ROUTES,
    HEALTH_ROUTES,
    PUBLIC_ROUTES,
    ErrorAnswer,
    Handler,
    LiteralRoutes,
)
from qlm.gateway.http.vllm.unsupported import UNSUPPORTED, refuse
from qlm.gateway.keys.asking import operator_refusal
from qlm.gateway.live.explaining import Explain
from qlm.gateway.sessions.gateway import Gateway, GatewayParts, create_gateway
from qlm.gateway.webhooks.dispatcher import webhooks_sent

_MOVED: Final = ("/metrics", "/admin", "/admin/{path:path}")
"""Paths for operators that earlier versions served to clients, too."""

_PROBES: Final = frozenset(path for _, path, _ in HEALTH_ROUTES)
"""Paths for anyone."""

_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def create_app(
    parts: GatewayParts, rules: AccessRules | None = None, admin_url: str | None = None
) -> Starlette:
    """Return the application of a new gateway, which is its `state.gateway`; see `app_of`.

    Raises:
        InvalidValueError: A model's tokenizer cannot be read.
    """
    gateway = create_gateway(parts)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway.running(), batches_running(gateway, LINE_ROUTES), webhooks_sent(gateway):
            yield

    return app_of(gateway, lifespan, rules, admin_url)


def app_of(
    gateway: Gateway,
    lifespan: Lifespan[Starlette] | None = None,
    rules: AccessRules | None = None,
    admin_url: str | None = None,
) -> Starlette:
    """Return the application of a gateway for its clients.

    Args:
        gateway: The gateway.
        lifespan: Runs the gateway; without it, the caller does.
        rules: Callers it accepts; by default, those of a listener on loopback.
        admin_url: Where the gateway serves operators; None if nowhere.
    """
    rules = rules or AccessRules()
    answer = partial(_error_of, gateway)
    chain = [Middleware(Guard, rules=rules, count=gateway.metrics.refused, answer=answer)]
    if rules.origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=rules.origins,
                allow_methods=CORS_METHODS,
                allow_headers=["*"],
                expose_headers=["*"],
                allow_private_network=True,
            )
        )
    if rules.keys_required:
        anyone = {"/health", "/version", *_PROBES, *(path for _, path, _ in ADMIN_DOCUMENT_ROUTES)}
        chain.append(
            Middleware(
                KeyCheck,
                keys=gateway.keys,
                clock=gateway.clock,
                count=gateway.metrics.refused,
                anyone=anyone,
                answer=answer,
            )
        )
    app = _app(gateway, rules, PUBLIC_ROUTES, chain, lifespan)
    moved = partial(_moved, admin_url)
    app.routes.extend(Route(path, moved, methods=_METHODS) for path in _MOVED)
    app.routes.extend(Route(path, refuse, methods=_METHODS) for path in UNSUPPORTED)
    return app


def _error_of(gateway: Gateway, path: str, error: ApiError) -> Response:
    """Return the answer for an error, in the form of the API that the path belongs to."""
    return message_error(error, gateway.new_id()) if path.startswith(MESSAGES) else error_answer(error)


def admin_app_of(
    gateway: Gateway, rules: AccessRules | None = None, explain: Explain | None = None
) -> Starlette:
    """Return the application of a gateway for its operators, which the caller runs beside the other one.

    Args:
        gateway: The gateway.
        rules: Callers it accepts; by default, those of a listener on loopback.
        explain: Explains groups and requests to viewers of the live page; without it there is no page.
    """
    rules = rules or AccessRules()

    async def not_operator(headers: HeaderValues) -> ApiError | None:
        return await operator_refusal(gateway.keys, headers, rules, gateway.clock.now_ns())

    guard = Middleware(
        Guard,
        rules=rules,
        count=gateway.metrics.refused,
        answer=partial(_error_of, gateway),
        anyone=_PROBES | {path for _, path, _ in ADMIN_DOCUMENT_ROUTES},
        not_operator=not_operator,
        page=frozenset() if explain is None else open_paths(),
    )
    app = _app(gateway, rules, (*HEALTH_ROUTES, *ADMIN_DOCUMENT_ROUTES, *ADMIN_ROUTES), [guard])
    if explain is not None:
        app.state.live_page = LivePage(gateway, explain)
        app.routes.extend(app.state.live_page.routes())
    return app


def _app(
    gateway: Gateway,
    rules: AccessRules,
    routes: Sequence[tuple[str, str, Handler]],
    guards: Sequence[Middleware],
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    bound = [(method, path, partial(handler, gateway)) for method, path, handler in routes]
    literal = Middleware(LiteralRoutes, routes=bound, errors=_ERROR_HANDLERS)
    app = Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in bound],
        middleware=[Middleware(RequestIds, gateway=gateway, rules=rules), *guards, literal],
        exception_handlers=_ERROR_HANDLERS,
        lifespan=lifespan,
    )
    # A redirect from /healthz/ would lead to the host that the client names.
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app


class RequestIds:
    """Outermost middleware: adds a new x-request-id to each answer that has none, and answers defects.

    Starlette would answer a defect itself, and leave its traceback to uvicorn, which logs it at each call.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, rules: AccessRules) -> None:
        self._app = app
        self._gateway = gateway
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, and add the header to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_named(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = message["headers"]
                if not any(name == b"x-request-id" for name, _ in headers):
                    message["headers"] = [*headers, (b"x-request-id", self._gateway.new_id().encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as error:
            failure = self._gateway.failed(error, "request")
            if begun:
                scope[BODY].cut()
            else:
                answer = _error_of(self._gateway, scope["path"], failure)
                answer.headers.update(headers_for_page(scope, self._rules))
                await answer(scope, receive, send)


async def _moved(admin_url: str | None, request: HttpRequest) -> Response:
    where = "nowhere, since admin.port is 0" if admin_url is None else f"on {admin_url}"
    message = f"{cut(request.url.path)} is for operators, who are served {where} (section admin)"
    raise ApiError(status=410, message=message, code="moved_to_admin")


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_answer(error)


async def _qlm_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, QlmError)
    return error_answer(from_qlm(error))


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, missing = request.url.path, error.status_code == 404
    message = (
        f"{request.method} {path}: {error.detail}{meant_path(path, _written(request)) if missing else ''}"
    )
    kind = "not_found" if missing else "method_not_allowed"
    allow = {} if missing else {"allow": ", ".join(sorted(_methods(request)))}
    refusal = ApiError(status=error.status_code, message=message, code=kind, headers=allow)
    return _error_of(request.app.state.gateway, path, refusal)


def _written(request: HttpRequest) -> set[str]:
    """Return the paths of the listener that are written out."""
    return {each.path for each in request.app.routes if isinstance(each, Route) and not each.param_convertors}


def _methods(request: HttpRequest) -> set[str]:
    """Return the methods of a path; Starlette's own error knows those of its first route only."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    matching = [each for each in routes if each.path_regex.match(request.url.path)]
    # A path that is written out is not one with a parameter, which it matches too.
    written = min((len(each.param_convertors) for each in matching), default=0)
    return {
        method for each in matching if len(each.param_convertors) == written for method in each.methods or ()
    }


_ERROR_HANDLERS: Final[Mapping[Any, ErrorAnswer]] = {
    ApiError: _api_error,
    QlmError: _qlm_error,
    HTTPException: _http_error,
}
