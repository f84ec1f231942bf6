"""What tests of the gateway over gRPC send, and how they read its refusals."""

from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.gateway.rpc.service import SERVICE
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from support.rpc import Failure, Stream

ANSWER = "Hello, world!"
QUEUED = RequestFilter(state=RequestState.QUEUED)
CODE = grpc.StatusCode


def completion(**more: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"model": "emulated", "prompt": "Hi", **more})


async def refusal(call: Any) -> Failure:
    """Wait for the status of a call that must not succeed."""
    with pytest.raises(aio.AioRpcError) as caught:
        if isinstance(call, aio.UnaryStreamCall):
            await Stream().read(call)
        else:
            await call
    failure = Failure(caught.value)
    assert failure.trailers["x-request-id"]
    return failure


async def health_is(channel: aio.Channel, status: str, service: str = SERVICE) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status
