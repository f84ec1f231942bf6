"""The ASGI application of a gateway: its routes and error handlers."""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

from qlm.domain.errors import QlmError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.api.errors import ApiError, defect, from_qlm
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http import admin, admin_dead_letters, completions, requests, service
from qlm.gateway.http.guard import CORS_METHODS, Guard
from qlm.gateway.http.responses import error_answer
from qlm.gateway.sessions.gateway import Gateway, create_gateway

_log = logging.getLogger(__name__)

Handler = Callable[[Gateway, HttpRequest], Awaitable[Response]]

ROUTES: Final[Sequence[tuple[str, str, Handler]]] = (
    ("POST", "/v1/chat/completions", completions.create_chat_completion),
    ("POST", "/v1/completions", completions.create_completion),
    ("GET", "/v1/models", service.list_models),
    ("GET", "/v1/models/{id:path}", service.get_model),
    ("GET", "/v1/requests/{id}/events", requests.resume_stream),
    ("GET", "/v1/requests/{id}", requests.get_request),
    ("DELETE", "/v1/requests/{id}", requests.cancel_request),
    ("GET", "/healthz", service.healthz),
    ("GET", "/readyz", service.readyz),
    ("GET", "/metrics", service.metrics),
    ("GET", "/admin/v1/queues", admin.list_queues),
    ("GET", "/admin/v1/groups", admin.list_groups),
    ("GET", "/admin/v1/requests", admin.list_requests),
    ("GET", "/admin/v1/requests/{id}", admin.get_request_details),
    ("GET", "/admin/v1/plan", admin.get_plan),
    ("GET", "/admin/v1/forecast", admin.get_forecast),
    ("GET", "/admin/v1/controller", admin.get_controller),
    ("GET", "/admin/v1/store", service.get_store),
    ("GET", "/admin/v1/listeners", service.get_listeners),
    ("GET", "/admin/v1/instances", admin.list_instances),
    ("POST", "/admin/v1/instances/{id}/drain", admin.drain_instance),
    ("GET", "/admin/v1/dead", admin_dead_letters.list_dead),
    ("DELETE", "/admin/v1/dead", admin_dead_letters.delete_all_dead),
    ("POST", "/admin/v1/dead/retry", admin_dead_letters.retry_all_dead),
    ("POST", "/admin/v1/dead/{id}/retry", admin_dead_letters.retry_dead),
    ("DELETE", "/admin/v1/dead/{id}", admin_dead_letters.delete_dead),
)


def create_app(
    models: Sequence[ModelSpec],
    broker: Broker,
    store: GatewayStore,
    clock: Clock,
    limits: GatewayLimits,
    gateway_id: GatewayId,
    new_id: Callable[[], RequestId],
    registry: CollectorRegistry | None = None,
    tracer: Tracer | None = None,
    rules: AccessRules | None = None,
    exposures: Sequence[str] = (),
    faults: FaultLog | None = None,
) -> Starlette:
    """Return the application of a new gateway, which is its `state.gateway`; see `create_gateway`.

    Raises:
        InvalidValueError: A model's tokenizer cannot be read.
    """
    gateway = create_gateway(
        models, broker, store, clock, limits, gateway_id, new_id, registry, tracer, exposures, faults
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    return app_of(gateway, lifespan, rules)


def app_of(
    gateway: Gateway, lifespan: Lifespan[Starlette] | None = None, rules: AccessRules | None = None
) -> Starlette:
    """Return the application of a gateway.

    Args:
        gateway: The gateway.
        lifespan: Runs the gateway; without it, the caller does.
        rules: Callers it accepts; by default, those of a listener on loopback.
    """
    app = Starlette(
        routes=[Route(path, partial(handler, gateway), methods=[method]) for method, path, handler in ROUTES],
        middleware=_middleware(gateway, rules or AccessRules()),
        exception_handlers={
            ApiError: _api_error,
            QlmError: _qlm_error,
            HTTPException: _http_error,
            Exception: partial(_internal_error, gateway),
        },
        lifespan=lifespan,
    )
    # A redirect from /healthz/ would lead to the host that the client names.
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return app


def _middleware(gateway: Gateway, rules: AccessRules) -> list[Middleware]:
    chain = [Middleware(RequestIds, new_id=gateway.new_id), Middleware(Guard, rules=rules)]
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
    return chain


class RequestIds:
    """Middleware that adds a new x-request-id to each answer that has none."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], RequestId]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, and add the header to its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if not any(name == b"x-request-id" for name, _ in headers):
                    message["headers"] = [*headers, (b"x-request-id", self._new_id().encode())]
            await send(message)

        await self._app(scope, receive, send_named)


async def _api_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_answer(error)


async def _qlm_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, QlmError)
    return error_answer(from_qlm(error))


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    kind = "not_found" if error.status_code == 404 else "method_not_allowed"
    return error_answer(
        ApiError(status=error.status_code, message=message, code=kind, headers=dict(error.headers or {}))
    )


async def _internal_error(gateway: Gateway, request: HttpRequest, error: Exception) -> Response:
    # Starlette answers these outside of all middleware, so the id is added here. uvicorn logs the traceback.
    id = gateway.new_id()
    gateway.faults.note(_log, error, "a request failed")
    _log.error("request %s failed: %s", id, type(error).__name__, extra={"request_id": id})
    return error_answer(defect(error, id))
