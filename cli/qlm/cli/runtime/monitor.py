"""HTTP listener for /metrics, /healthz and /readyz in a process without a gateway."""

import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from qlm.cli.config.listeners.access import for_operators
from qlm.cli.config.listeners.urls import http_url
from qlm.cli.config.observability import MonitorConfig
from qlm.cli.runtime.health import OK, Health
from qlm.domain.errors import QlmError
from qlm.gateway.api.callers import Headers, operator_errors
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.http.connections.listener import Connections
from qlm.gateway.http.guard import Guard
from qlm.gateway.http.responses import Json
from qlm.gateway.http.server import create_server, running

log = logging.getLogger("qlm.cli")

PORTS: Final = 64
"""Ports that are tried, and processes of one machine that may share a configuration."""

PORT_MAX: Final = 65535

ANYONE: Final = frozenset({"/healthz", "/readyz"})
"""Paths that are not for operators alone: probes have no token."""


class NoPortError(QlmError):
    """None of the ports is free."""


@asynccontextmanager
async def monitor(
    config: MonitorConfig,
    registry: CollectorRegistry,
    health: Health,
    readiness: Callable[[], Mapping[str, str]],
    rules: AccessRules | None = None,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[int]:
    """Serve on the first free port while inside.

    Args:
        config: Address and first port.
        registry: Metrics of the process.
        health: Probes of broker and store.
        readiness: Readiness of the agents of this process by name: `ok` or a reason.
        rules: Callers it accepts; by default, those of a listener on loopback.
        limits: Limits of its connections; by default, those of a listener for operators.

    Yields:
        The port.

    Raises:
        NoPortError: No port is free.
    """
    listener = _listen(config)
    port: int = listener.getsockname()[1]
    connections = Connections(limits or for_operators(ConnectionLimits()), _count_nothing)
    app = _app(registry, health, readiness, rules or AccessRules())
    async with running(create_server(app, connections=connections), listener):
        log.info("metrics and health are on %s", http_url(config.host, port))
        yield port


def _app(
    registry: CollectorRegistry,
    health: Health,
    readiness: Callable[[], Mapping[str, str]],
    rules: AccessRules,
) -> Starlette:
    async def metrics(request: HttpRequest) -> Response:
        # On the event loop, the only place where agents and controller change what is read here.
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(request: HttpRequest) -> Response:
        return Json({"status": OK})

    async def readyz(request: HttpRequest) -> Response:
        servers = await health.probe()
        states = {"broker": servers.broker, "store": servers.store, **readiness()}
        ready = all(each == OK for each in states.values())
        content = {"status": OK if ready else "unavailable", **states}
        return Json(content, status=200 if ready else 503)

    async def not_operator(headers: Headers) -> ApiError | None:
        return next(operator_errors(headers, rules), None)

    guard = Middleware(Guard, rules=rules, count=_count_nothing, anyone=ANYONE, not_operator=not_operator)
    routes = {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}
    app = Starlette(routes=[Route(path, handler) for path, handler in routes.items()], middleware=[guard])
    # Without a token, a redirect from /healthz/ would lead to the host that the caller names.
    app.router.redirect_slashes = False
    return app


def _count_nothing(status: int, code: str) -> None:
    """Count a refusal nowhere: only gateways have a metric of them."""


def _listen(config: MonitorConfig) -> socket.socket:
    last = min(config.port + PORTS - 1, PORT_MAX)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for port in range(config.port, last + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.host, port))
            listener.listen()  # two sockets may be bound to a port that no socket listens on yet
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                why = (error.strerror or str(error)).lower()
                raise NoPortError(f"cannot listen on monitor {config.host}:{port}: {why}") from error
        else:
            return listener
    raise NoPortError(
        f"monitor.port is {config.port}: all ports up to {last} of {config.host} are in use; "
        "expected a free one"
    )
