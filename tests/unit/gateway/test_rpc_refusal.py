"""Refusals of calls whose client has left, at a real server."""

import asyncio
import contextlib
from typing import Any

import grpc
from grpc import aio

from qlm.gateway.api.errors import invalid
from qlm.gateway.rpc.refusal import Context, refuse


class Leaving:
    """A method that refuses its call once the client has left."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.raised: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def call(self, _: bytes, context: Context) -> None:
        self.entered.set()
        with contextlib.suppress(asyncio.CancelledError):  # as work that may not be broken off does
            await asyncio.get_running_loop().create_future()
        try:
            await refuse(context, invalid("field", "a reason"))
        except BaseException as error:
            self.raised.set_result(error)
            raise


async def _served(method: Leaving) -> tuple[aio.Server, int]:
    handlers: dict[str, Any] = {"Call": grpc.unary_stream_rpc_method_handler(method.call)}
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("refusal.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def test_a_refusal_that_finds_its_client_gone_is_a_cancellation() -> None:
    """Any other error of it has grpcio log a traceback."""
    method = Leaving()
    server, port = await _served(method)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/refusal.Test/Call")
        answers = call(b"")
        await asyncio.wait_for(method.entered.wait(), 20)
        answers.cancel()
        raised = await asyncio.wait_for(method.raised, 20)
    await server.stop(None)
    assert isinstance(raised, asyncio.CancelledError)
