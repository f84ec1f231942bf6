"""Refusal of messages that are not what their call takes; grpcio would log a traceback for each.

A message that cannot be read becomes a value of its own, which ends the call before its method sees it.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from qlm.domain.ids import RequestId
from qlm.gateway.api.errors import ApiError
from qlm.gateway.rpc.refusal import Context, refuse

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that cannot be read, and why."""

    why: str


class RefuseUnreadable(aio.ServerInterceptor):
    """Ends calls whose message cannot be read with INVALID_ARGUMENT."""

    def __init__(self, new_id: Callable[[], RequestId]) -> None:
        """Refuse under new ids."""
        self._new_id = new_id

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method of a call, for messages that may be unreadable."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        reading = {
            "request_deserializer": partial(_read, handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                partial(self._stream, handler.stream_stream), **reading
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._one(handler.unary_stream), **reading)
        return grpc.unary_unary_rpc_method_handler(self._one(handler.unary_unary), **reading)

    def _one(self, method: Any) -> Any:
        assert not inspect.isasyncgenfunction(method), "methods here write their answers to the context"

        async def checked(request: Any, context: Context) -> Any:
            await self._check(request, context)
            return await method(request, context)

        return checked

    async def _stream(
        self, method: Any, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        async def readable() -> AsyncIterator[Any]:
            async for each in requests:
                await self._check(each, context)
                yield each

        async for answer in method(readable(), context):
            yield answer

    async def _check(self, request: Any, context: Context) -> None:
        if isinstance(request, Unreadable):
            message = f"the message cannot be read: {request.why}; expected one of this call"
            headers = {"x-request-id": self._new_id()}
            error = ApiError(status=400, message=message, code="invalid_message", headers=headers)
            await refuse(context, error)


def _read(deserializer: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserializer(data)
    except DecodeError as error:
        return Unreadable(str(error))
