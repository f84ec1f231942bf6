"""HTTP listener for /metrics, /healthz and /readyz in a process without a gateway."""

import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qlm.cli.config.observability import MonitorConfig
from qlm.cli.runtime.health import OK, Health
from qlm.domain.errors import QlmError
from qlm.gateway.api.callers import caller_errors, operator_errors
from qlm.gateway.core.access import AccessRules

log = logging.getLogger("qlm.cli")

PORTS: Final = 64
"""Ports that are tried, and processes of one machine that may share a configuration."""

PORT_MAX: Final = 65535

ANYONE: Final = frozenset({"/healthz", "/readyz"})
"""Paths that are not for operators alone: probes have no token."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NoPortError(QlmError):
    """None of the ports is free."""


@asynccontextmanager
async def monitor(
    config: MonitorConfig,
    registry: CollectorRegistry,
    health: Health,
    readiness: Callable[[], Mapping[str, str]],
    rules: AccessRules | None = None,
) -> AsyncIterator[int]:
    """Serve on the first free port while inside.

    Args:
        config: Address and first port.
        registry: Metrics of the process.
        health: Probes of broker and store.
        readiness: Readiness of the agents of this process by name: `ok` or a reason.
        rules: Callers it accepts; by default, those of a listener on loopback.

    Yields:
        The port.

    Raises:
        NoPortError: No port is free.
    """
    listener = _listen(config)
    port: int = listener.getsockname()[1]
    app = _app(registry, health, readiness, rules or AccessRules())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        log.info("metrics and health are on http://%s:%d", config.host, port)
        yield port
    finally:
        await runner.cleanup()


def _app(
    registry: CollectorRegistry,
    health: Health,
    readiness: Callable[[], Mapping[str, str]],
    rules: AccessRules,
) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        # On the event loop, the only place where agents and controller change what is read here.
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"status": OK})

    async def readyz(request: web.Request) -> web.Response:
        servers = await health.probe()
        states = {"broker": servers.broker, "store": servers.store, **readiness()}
        ready = all(each == OK for each in states.values())
        content = {"status": OK if ready else "unavailable", **states}
        return web.json_response(content, status=200 if ready else 503)

    app = web.Application(middlewares=[_guard(rules)])
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app


def _guard(rules: AccessRules) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        def headers(name: str) -> list[str]:
            return request.headers.getall(name, [])

        errors = caller_errors(headers, rules)
        if request.path not in ANYONE:
            errors = chain(errors, operator_errors(headers, rules))
        if (refusal := next(errors, None)) is not None:
            return web.json_response(refusal.body(), status=refusal.status, headers=refusal.headers)
        return await handler(request)

    return guarded


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
