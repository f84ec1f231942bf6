"""The gRPC listener of a gateway in this event loop, and a client of it."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from qlm.domain.ports.broker import Broker
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.core.access import AccessRules
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.rpc.server import RpcListener
from qlm.gateway.rpc.tls import TlsFiles
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.sessions.gateway import create_gateway
from support.gateway import Cluster


@contextlib.asynccontextmanager
async def rpc_gateway(
    cluster: Cluster,
    *,
    limits: GatewayLimits | None = None,
    broker: Broker | None = None,
    tls: TlsFiles | None = None,
    shutdown_s: float = 0.2,
    tracer: Tracer | None = None,
    rules: AccessRules | None = None,
    connections: ConnectionLimits | None = None,
    faults: FaultLog | None = None,
) -> AsyncIterator[tuple[str, RpcListener]]:
    """Run a gateway that has a gRPC listener only; give its address, and the listener."""
    gateway = create_gateway(
        cluster.parts(
            f"rpc-{uuid.uuid4().hex[:8]}",
            broker=broker or cluster.broker,
            limits=limits or cluster.limits,
            tracer=tracer,
            faults=faults or FaultLog(),
        )
    )
    async with gateway.running():
        listener = RpcListener(gateway, rules, connections)
        port = await listener.start("127.0.0.1", 0, tls)
        try:
            yield f"127.0.0.1:{port}", listener
        finally:
            await listener.stop(0, shutdown_s)


class Stream:
    """What was read of a stream: what it began and ended with, and the deltas in between."""

    def __init__(self, messages: Iterable[pb.GenerateResponse] = ()) -> None:
        self.started: pb.Started | None = None
        self.deltas: list[pb.Delta] = []
        self.ended: pb.Ended | None = None
        for message in messages:
            self.add(message)

    def add(self, message: pb.GenerateResponse) -> None:
        """Add a message; `started` comes first and once, `ended` last."""
        assert self.ended is None
        match message.WhichOneof("event"):
            case "started":
                assert self.started is None and not self.deltas
                self.started = message.started
            case "delta":
                assert self.started is not None
                self.deltas.append(message.delta)
            case "ended":
                self.ended = message.ended

    async def read(self, call: Any, *, until_tokens: int | None = None) -> "Stream":
        """Read on, to the end or until so many output tokens were shown."""
        async for message in call:
            self.add(message)
            if until_tokens is not None and self.deltas and self.deltas[-1].offset >= until_tokens:
                break
        return self

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        """All of its tokens."""
        return [id for delta in self.deltas for id in delta.token_ids]


class Failure:
    """A status that is an error, with its details."""

    def __init__(self, error: Any) -> None:
        self.code: grpc.StatusCode = error.code()
        self.message = error.details() or ""
        self.trailers = dict(error.trailing_metadata() or ())
        self.reason, self.field, self.retry_ms = "", "", 0
        packed = self.trailers.get("grpc-status-details-bin", b"")
        assert isinstance(packed, bytes)
        for detail in status_pb2.Status.FromString(packed).details:
            match detail.TypeName():
                case "google.rpc.ErrorInfo":
                    self.reason = error_details_pb2.ErrorInfo.FromString(detail.value).reason
                case "google.rpc.BadRequest":
                    (wrong,) = error_details_pb2.BadRequest.FromString(detail.value).field_violations
                    self.field = wrong.field
                case "google.rpc.RetryInfo":
                    delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                    self.retry_ms = delay.ToMilliseconds()
