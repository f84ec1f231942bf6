"""HTTP and gRPC listeners of a gateway: bind, serve, shut down."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette

from qlm.cli.config.listeners.access import (
    access_rules,
    admin_rules,
    connection_limits,
    exposures,
    for_operators,
    grpc_rules,
)
from qlm.cli.config.listeners.grpc import read_tls
from qlm.cli.config.listeners.urls import http_url
from qlm.cli.config.settings import Config, StopConfig
from qlm.cli.deployment.file_storage import check_storage, storage
from qlm.cli.plans.page import explain_for_page
from qlm.cli.processes.workers import Workers
from qlm.cli.rendering.tiers import render_tiers
from qlm.cli.runtime.backends import Backends, broker_client
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.telemetry import Telemetry
from qlm.cli.runtime.wiring import (
    configured,
    gateway_limits,
    model_specs,
    new_gateway_id,
    new_request_id,
)
from qlm.cli.webhooks.secrets import read_webhooks
from qlm.domain.errors import QlmError, StoreUnavailableError, UndecodableDataError
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.tasks import Tasks, end_tasks
from qlm.gateway.batches.runner import run_batches
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.http.app import admin_app_of, app_of
from qlm.gateway.http.connections.listener import Connections
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.http.server import QuietServer, create_server, running, stop_serving
from qlm.gateway.keys.missing import missing_keys
from qlm.gateway.render.rendering import RenderTiers
from qlm.gateway.sessions.gateway import Gateway, GatewayParts, create_gateway
from qlm.gateway.webhooks.dispatcher import send_webhooks

if TYPE_CHECKING:
    # gRPC is imported by `_start_rpc` only, after the environment variable that it reads is set.
    from qlm.gateway.rpc.server import RpcListener

log = logging.getLogger("qlm.cli")


BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


class CannotListenError(QlmError):
    """A configured address cannot be listened on: another listener has it, or it is not of this machine."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Bound sockets of a gateway.

    Attributes:
        http: Socket for clients.
        admin: Socket for operators; None if they have no listener.
    """

    http: socket.socket
    admin: socket.socket | None

    def listen(self) -> None:
        """Begin to listen: uvloop would drop the error of a port that another process has meanwhile.

        Raises:
            CannotListenError: There is such a process.
        """
        for listener, option in ((self.http, "--port"), (self.admin, "--admin-port")):
            if listener is None:
                continue
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                host, port = listener.getsockname()[:2]
                raise _refused(host, port, error, option) from error


def bind_ports(config: Config, stack: AsyncExitStack) -> Sockets:
    """Bind the ports of HTTP, and check that the one of gRPC is free, before anything else is opened."""
    http = stack.enter_context(_listen(config.http.host, config.http.port))
    if config.http.workers:
        http.listen(BACKLOG)  # connections wait here while a worker starts
    taken = [http.getsockname()]
    if config.grpc.port:
        with _listen(config.grpc.host, config.grpc.port, "--grpc-port", taken) as rpc:
            taken.append(rpc.getsockname())
    if not config.admin.port:
        return Sockets(http, None)
    admin = stack.enter_context(_listen(config.admin.host, config.admin.port, "--admin-port", taken))
    return Sockets(http, admin)


async def serve_gateway(
    config: Config,
    backends: Backends,
    clock: SystemClock,
    sockets: Sockets,
    telemetry: Telemetry,
    workers: Workers | None = None,
) -> None:
    """Run the gateway until cancelled; then finish open answers, or ask clients to go elsewhere.

    Args:
        config: The whole configuration.
        backends: Broker and store.
        clock: The clock.
        sockets: Sockets of HTTP.
        telemetry: Metrics and traces of the process.
        workers: Processes that serve clients over HTTP instead of this one.
    """
    async with render_tiers(config, clock) as tiers, broker_client(backends) as broker:
        await check_storage(config)
        gateway = gateway_of(config, backends, broker, clock, telemetry, tiers)
        limits, warning = connection_limits(config)
        if warning is not None:
            log.warning("%s", warning)
        server = client_server(config, gateway, limits) if workers is None else None
        sockets.listen()
        rpc_listener = await _start_rpc(config, gateway, limits)
        async with gateway.running(), _administration(config, gateway, limits, sockets.admin):
            announcer = asyncio.create_task(announce(config, backends, clock))
            if server is not None:
                serving = asyncio.create_task(server.serve(sockets=[sockets.http]))
                shut_down = partial(_shut_down, config.stop, gateway, server, serving, rpc_listener)
            else:
                assert workers is not None
                serving = asyncio.create_task(workers.run())
                shut_down = partial(_stop_workers, config.stop, gateway, workers, rpc_listener)
            batches = asyncio.create_task(run_batches(gateway, LINE_ROUTES))
            sending = asyncio.create_task(send_webhooks(gateway))
            try:
                await asyncio.shield(serving)
            finally:
                await end_gateway([announcer, batches, sending], shut_down)


async def end_gateway(helpers: Tasks, shut_down: Callable[[bool], Awaitable[None]]) -> None:
    """End tasks beside the listeners, then the listeners.

    A second cancellation, of a second signal, may arrive while the helpers end: it must not be lost.

    Args:
        helpers: Tasks beside the listeners.
        shut_down: Ends the listeners, at once if true; also if cancelled.
    """
    at_once = False
    try:
        await end_tasks(helpers)
    except asyncio.CancelledError:
        at_once = True
        raise
    finally:
        await shut_down(at_once)


def gateway_of(
    config: Config,
    backends: Backends,
    broker: Broker,
    clock: SystemClock,
    telemetry: Telemetry,
    tiers: RenderTiers,
) -> Gateway:
    """Wire the gateway of this process.

    Raises:
        InvalidValueError: A model's tokenizer cannot be read.
    """
    parts = GatewayParts(
        models=model_specs(config),
        broker=broker,
        store=backends.store,
        clock=clock,
        limits=gateway_limits(config),
        gateway_id=new_gateway_id(),
        new_id=new_request_id,
        registry=telemetry.registry,
        tracer=telemetry.tracer,
        exposures=exposures(config),
        faults=telemetry.faults,
        configured=configured(config),
        render_tiers=tiers,
        storage=storage(config, clock),
        webhooks=read_webhooks(config.webhooks),
    )
    return create_gateway(parts)


def client_server(config: Config, gateway: Gateway, limits: ConnectionLimits) -> QuietServer:
    """Return the server of the HTTP listener for clients."""
    admin_url = config.admin.url if config.admin.port else None
    return limited_server(app_of(gateway, rules=access_rules(config), admin_url=admin_url), gateway, limits)


def _administration(
    config: Config, gateway: Gateway, limits: ConnectionLimits, listener: socket.socket | None
) -> AbstractAsyncContextManager[None]:
    """Serve operators while inside: until the last client has been answered."""
    if listener is None:
        return nullcontext()
    app = admin_app_of(gateway, admin_rules(config), explain_for_page)
    return running(limited_server(app, gateway, for_operators(limits)), listener)


def limited_server(app: Starlette, gateway: Gateway, limits: ConnectionLimits) -> QuietServer:
    """Return the server of an HTTP listener that counts and refuses what breaks its limits."""
    return create_server(app, connections=Connections(limits, gateway.metrics.refused))


async def _shut_down(
    stop: StopConfig,
    gateway: Gateway,
    server: QuietServer,
    serving: "asyncio.Task[None]",
    rpc_listener: "RpcListener | None",
    at_once: bool,
) -> None:
    times = _times(stop, at_once)
    closing = () if rpc_listener is None else (asyncio.create_task(rpc_listener.stop(**times)),)
    await asyncio.gather(stop_serving(server, serving, gateway.hub, beside=closing, **times), *closing)


async def _stop_workers(
    stop: StopConfig,
    gateway: Gateway,
    workers: Workers,
    rpc_listener: "RpcListener | None",
    at_once: bool,
) -> None:
    gateway.hub.stopping = True
    times = _times(stop, at_once)
    closing = () if rpc_listener is None else (asyncio.create_task(rpc_listener.stop(**times)),)
    await asyncio.gather(workers.stop(at_once=at_once), *closing)


def _times(stop: StopConfig, at_once: bool) -> dict[str, float]:
    return {"notice_s": 0.0 if at_once else stop.notice_s, "grace_s": 0.0 if at_once else stop.grace_s}


async def _start_rpc(config: Config, gateway: Gateway, limits: ConnectionLimits) -> "RpcListener | None":
    """Start the gRPC listener; None if there is none."""
    if not config.grpc.port:
        return None
    # gRPC reads this when it is imported. Without it, gRPC logs complaints about engines, which are started
    # by fork and exec. The import is here since only the images of gateways contain gRPC.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from qlm.gateway.rpc.server import RpcListener

    rpc_listener = RpcListener(gateway, grpc_rules(config), limits)
    await rpc_listener.start(config.grpc.host, config.grpc.port, read_tls(config.grpc))
    return rpc_listener


async def announce(config: Config, backends: Backends, clock: SystemClock) -> None:
    """Log the addresses, warn of those open to anyone, and log each instance when its first engine is up."""
    base = http_url(config.http.host, config.http.port)
    log.info("QLM listens on %s (OpenAI API under %s/v1)", base, base)
    if config.grpc.port:
        secured = "with TLS" if config.grpc.tls else "without TLS"
        log.info("and for gRPC on %s:%d (%s)", config.grpc.host, config.grpc.port, secured)
    if config.admin.port:
        secured = "without a token" if config.admin.token is None else "with the admin token"
        address = http_url(config.admin.host, config.admin.port)
        log.info("and for operators on %s (%s; live page: %s/ui)", address, secured, address)
    wanted, ready = {instance.id for instance in config.instances}, set[str]()
    for exposure in exposures(config):
        log.warning("%s", exposure)
    with suppress(StoreUnavailableError):
        for warning in await missing_keys(backends.store, clock.now_ns(), required=config.http.keys_required):
            log.warning("%s", warning)
    while ready != wanted:
        for status in await _live(backends):
            up = EngineState.AWAKE in dict(status.engines).values()
            if up and status.id not in ready:
                ready.add(status.id)
                log.info("%s (%s) serves %s", status.id, status.accelerator, status.active_model)
        await asyncio.sleep(0.2)
    log.info("ready: all %d instances are up", len(wanted))


async def _live(backends: Backends) -> tuple[InstanceStatus, ...]:
    try:
        return (await backends.store.view()).instances
    except (StoreUnavailableError, UndecodableDataError):
        return ()


def _listen(
    host: str, port: int, option: str = "--port", taken: Sequence[tuple[Any, ...]] = ()
) -> socket.socket:
    """Bind a port at which no listener of this process is: `taken` has their addresses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _refused(host, port, error, option) from error
    # Ports that are bound and not listened on may be bound again: the system says nothing.
    if any(_overlap(listener.getsockname(), each) for each in taken):
        listener.close()
        raise CannotListenError(f"cannot listen on {host}:{port}: another listener has it; give {option}")
    return listener


def _refused(host: str, port: int, error: OSError, option: str) -> CannotListenError:
    why = (error.strerror or str(error)).lower()
    return CannotListenError(f"cannot listen on {host}:{port}: {why}; {_remedy(error, option)}")


def _remedy(error: OSError, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"stop what uses it, or give {option}"
    if error.errno == errno.EACCES:
        return f"give {option} of 1024 or more"
    return "give an address of this machine"


def _overlap(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether two addresses of sockets have a host and port in common."""
    hosts = [ip_address(each[0]) for each in (one, other)]
    return one[1] == other[1] and (hosts[0] == hosts[1] or any(each.is_unspecified for each in hosts))
