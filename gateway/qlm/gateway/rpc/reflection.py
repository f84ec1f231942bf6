"""Server reflection under both of its names: v1 for newer clients, and v1alpha, which grpcio implements."""

from collections.abc import Iterable
from typing import Any, Final

import grpc
from grpc import aio
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

V1: Final = "grpc.reflection.v1.ServerReflection"
"""Its messages have the same bytes as those of v1alpha, under another package."""


def add_reflection(services: Iterable[str], server: aio.Server) -> None:
    """Let a server list its services, and v1alpha; v1 has no description here, so it is not listed."""
    # The code that grpcio generates has no types.
    servicer: Any = reflection.aio.ReflectionServicer((*services, reflection.SERVICE_NAME))
    add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=ServerReflectionRequest.FromString,
        response_serializer=ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))
