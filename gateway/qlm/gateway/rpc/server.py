"""Runs the gRPC door of a gateway, with health, reflection and TLS."""

import asyncio
import contextlib
import logging
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from qlm.domain.errors import QlmError
from qlm.gateway.gateway import Gateway
from qlm.gateway.readiness import readiness
from qlm.gateway.rpc.reflection import add_reflection
from qlm.gateway.rpc.service import SERVICE, QlmService
from qlm.gateway.rpc.tls import TlsFiles
from qlm.gateway.rpc.v1.qlm_pb2_grpc import add_QlmServicer_to_server

_log = logging.getLogger(__name__)

HEALTH_INTERVAL_S: Final = 1.0
"""How often broker and store are asked whether this door can serve."""

TRANSPORT_FACTOR: Final = 4
"""A message up to so many times as large as is accepted is still read, to be refused in our words."""

KEEPALIVE_MS: Final = 30_000
"""A connection that has been silent for so long is asked whether its client is still there."""

CONNECTION_AGE_MS: Final = 300_000
"""After so long clients are asked to connect anew, lest gateways that were added get no calls."""

_BREAK_OFF_S: Final = 1.0
"""How long a stream has, once broken off, to tell its client so."""


class RpcPortError(QlmError):
    """The gRPC door cannot listen where it was told to."""


class RpcDoor:
    """The gRPC server of a gateway.

    Attributes:
        gateway: Kept running by the caller.
    """

    def __init__(self, gateway: Gateway) -> None:
        """Make the door; `start` opens it."""
        self.gateway = gateway
        self._service = QlmService(gateway)
        self._health = health.aio.HealthServicer()
        bytes_max = TRANSPORT_FACTOR * gateway.limits.body_bytes_max
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
            )
        )
        add_QlmServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection((SERVICE, health.SERVICE_NAME), self._server)
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 takes a free one.
            tls: Certificate and key; None for plain HTTP/2.

        Returns:
            The port.

        Raises:
            RpcPortError: It cannot be had, or certificate and key cannot be used.
        """
        await self._tell(HealthCheckResponse.NOT_SERVING)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                bound = self._server.add_insecure_port(address)
            else:
                secret = grpc.ssl_server_credentials([(tls.key, tls.cert)])
                bound = self._server.add_secure_port(address, secret)
        except RuntimeError as error:
            raise RpcPortError(f"cannot listen on {address} for gRPC: {error}") from error
        await self._server.start()
        self._watch = asyncio.create_task(self._watch_readiness())
        return bound

    async def stop(self, notice_s: float, grace_s: float) -> None:
        """Close the door; cancelled meanwhile, at once.

        Args:
            notice_s: How long it goes on as before, but for the health service, so that balancers notice.
            grace_s: How long open calls may go on after that; then streams end so that they resume elsewhere.
        """
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self._health.enter_graceful_shutdown()
        try:
            await asyncio.sleep(notice_s)
            stopping = asyncio.create_task(self._server.stop(grace_s + _BREAK_OFF_S))
            await asyncio.wait({stopping}, timeout=grace_s)
        finally:
            self._service.break_off()
            await self._server.stop(_BREAK_OFF_S)

    async def _watch_readiness(self) -> None:
        while True:
            try:
                ready = (await readiness(self.gateway))["status"] == "ok"
            except Exception:
                # Whatever it is, the next look may be better; who no longer looks says the same for ever.
                _log.exception("whether the gRPC door can serve is not known")
                ready = False
            await self._tell(HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING)
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def _tell(self, status: int) -> None:
        for name in (health.OVERALL_HEALTH, SERVICE):
            await self._health.set(name, status)
