"""The doors of a gateway, HTTP and gRPC: where they listen, how they open and close."""

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from qlm.cli.clock import SystemClock
from qlm.cli.config import Config, StopConfig
from qlm.cli.config_grpc import GrpcConfig, read_tls
from qlm.cli.parts import Parts, broker_of
from qlm.cli.telemetry import Telemetry
from qlm.cli.wiring import gateway_limits, model_specs, new_gateway_id, new_request_id
from qlm.domain.errors import QlmError, StoreUnavailableError
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.gateway.app import app_of
from qlm.gateway.gateway import Gateway, create_gateway
from qlm.gateway.server import QuietServer, create_server
from qlm.gateway.stopping import stop_serving

if TYPE_CHECKING:
    from qlm.gateway.rpc.server import RpcDoor

log = logging.getLogger("qlm.cli")


class PortInUseError(QlmError):
    """Another program listens where we were told to."""


def listen_at_doors(config: Config, stack: AsyncExitStack) -> socket.socket:
    """Take the port of HTTP, and see that the one of gRPC is free, before anything is opened."""
    listener = _listen(config.http.host, config.http.port)
    stack.callback(listener.close)
    if config.grpc.port:
        _listen(config.grpc.host, config.grpc.port, "--grpc-port").close()
    return listener


async def open_doors(
    config: Config, parts: Parts, clock: SystemClock, listener: socket.socket, telemetry: Telemetry
) -> None:
    """Serve at the doors until cancelled; then let who waits be answered, or send it elsewhere."""
    async with broker_of(parts) as broker:
        gateway = create_gateway(
            models=model_specs(config),
            broker=broker,
            store=parts.store,
            clock=clock,
            limits=gateway_limits(config),
            gateway_id=new_gateway_id(),
            new_id=new_request_id,
            registry=telemetry.registry,
            tracer=telemetry.tracer,
        )
        server = create_server(app_of(gateway))
        rpc_door = await _open_rpc_door(config.grpc, gateway)
        async with gateway.running():
            announcer = asyncio.create_task(_announce(config, parts))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            finally:
                announcer.cancel()
                await _close_doors(config.stop, gateway, server, serving, rpc_door)


async def _close_doors(
    stop: StopConfig,
    gateway: Gateway,
    server: QuietServer,
    serving: "asyncio.Task[None]",
    rpc_door: "RpcDoor | None",
) -> None:
    times = {"notice_s": stop.notice_s, "grace_s": stop.grace_s}
    closing = () if rpc_door is None else (asyncio.create_task(rpc_door.stop(**times)),)
    await asyncio.gather(stop_serving(server, serving, gateway.hub, beside=closing, **times), *closing)


async def _open_rpc_door(config: GrpcConfig, gateway: Gateway) -> "RpcDoor | None":
    """Listen for gRPC; None if there is to be no such door."""
    if not config.port:
        return None
    # Read once, when gRPC is imported: of engines, started by fork and exec, it would complain in the log.
    # So it is imported here, by gateways only; the images of other parts do not have it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from qlm.gateway.rpc.server import RpcDoor

    door = RpcDoor(gateway)
    await door.start(config.host, config.port, read_tls(config))
    return door


async def _announce(config: Config, parts: Parts) -> None:
    """Say when the first and when the last engine of the fleet is up."""
    base = f"http://{config.http.host}:{config.http.port}"
    log.info("QLM listens on %s (OpenAI API under %s/v1)", base, base)
    if config.grpc.port:
        secured = "with TLS" if config.grpc.tls else "without TLS"
        log.info("and for gRPC on %s:%d (%s)", config.grpc.host, config.grpc.port, secured)
    wanted, ready = {instance.id for instance in config.instances}, set[str]()
    while ready != wanted:
        for status in await _live(parts):
            up = EngineState.AWAKE in dict(status.engines).values()
            if up and status.id not in ready:
                ready.add(status.id)
                log.info("%s (%s) serves %s", status.id, status.accelerator, status.active_model)
        await asyncio.sleep(0.2)
    log.info("ready: all %d instances are up", len(wanted))


async def _live(parts: Parts) -> tuple[InstanceStatus, ...]:
    try:
        return (await parts.store.view()).instances
    except StoreUnavailableError:
        return ()


def _listen(host: str, port: int, option: str = "--port") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = (error.strerror or str(error)).lower()
        raise PortInUseError(
            f"cannot listen on {host}:{port}: {why}; stop what uses it, or give {option}"
        ) from error
    return listener
