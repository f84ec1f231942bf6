"""The gRPC listener of a gateway, with health, reflection and TLS."""

import asyncio
import logging
from typing import Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from qlm.domain.errors import QlmError
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.rpc.options import server_options
from qlm.gateway.rpc.reflection import add_reflection
from qlm.gateway.rpc.service import SERVICE, QlmService
from qlm.gateway.rpc.tls import TlsFiles
from qlm.gateway.rpc.unreadable import RefuseUnreadable
from qlm.gateway.rpc.v1.qlm_pb2_grpc import add_QlmServicer_to_server
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.readiness import readiness

_log = logging.getLogger(__name__)

HEALTH_INTERVAL_S: Final = 1.0
"""Interval of the readiness probes behind the health service."""

_INTERRUPT_S: Final = 1.0
"""Time for the status of an interrupted stream to reach its client."""


class RpcPortError(QlmError):
    """The gRPC listener cannot bind its address."""


class RpcListener:
    """The gRPC server of a gateway, which the caller keeps running."""

    def __init__(
        self, gateway: Gateway, rules: AccessRules | None = None, limits: ConnectionLimits | None = None
    ) -> None:
        """Configure the server; `start` starts it.

        Args:
            gateway: The gateway.
            rules: Operators it accepts; by default, every caller, as on loopback.
            limits: Limits of connections; by default those of `ConnectionLimits`.
        """
        self.gateway = gateway
        self._service = QlmService(gateway, rules or AccessRules())
        self._health = health.aio.HealthServicer()
        options = server_options(limits or ConnectionLimits(), gateway.limits.body_bytes_max)
        self._server = aio.server(interceptors=(RefuseUnreadable(gateway.new_id),), options=options)
        add_QlmServicer_to_server(self._service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection((SERVICE, health.SERVICE_NAME), self._server)
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen, and return the port.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 for a free one.
            tls: Certificate and key; None for plain HTTP/2.

        Raises:
            RpcPortError: The port is taken, or certificate and key are not valid.
        """
        await self._set_health(HealthCheckResponse.NOT_SERVING)
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
        """Stop serving; if cancelled, at once.

        Args:
            notice_s: Time for which only the health service fails, so that load balancers notice.
            grace_s: Time for open calls after that; then streams end so that clients resume elsewhere.
        """
        try:
            if self._watch is not None:
                await end_tasks([self._watch])
            await self._health.enter_graceful_shutdown()
            await asyncio.sleep(notice_s)
            stopping = asyncio.create_task(self._server.stop(grace_s + _INTERRUPT_S))
            await asyncio.wait({stopping}, timeout=grace_s)
        finally:
            self._service.interrupt_streams()
            await self._server.stop(_INTERRUPT_S)

    async def _watch_readiness(self) -> None:
        while True:
            try:
                ready = (await readiness(self.gateway))["status"] == "ok"
            except Exception as error:
                # Keep probing: if this task ended, the health service would report its last status for ever.
                self.gateway.faults.note(_log, error, "cannot probe the readiness of the gRPC listener")
                ready = False
            await self._set_health(HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING)
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def _set_health(self, status: int) -> None:
        for name in (health.OVERALL_HEALTH, SERVICE):
            await self._health.set(name, status)
