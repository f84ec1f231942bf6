"""The end of a call that is refused."""

import asyncio
from typing import Any, NoReturn

from grpc import aio

from qlm.gateway.api.errors import ApiError
from qlm.gateway.rpc.errors import code_of, message_of, trailers

Context = aio.ServicerContext[Any, Any]


async def refuse(context: Context, error: ApiError) -> NoReturn:
    """End a call with the status of an error.

    Raises:
        AbortError: The status was sent; grpcio ends the call by it.
        CancelledError: The client has left, so the status cannot be sent.
    """
    try:
        await context.abort(code_of(error), message_of(error), trailers(error))
    except aio.InternalError as gone:
        # grpcio would log a traceback. Its context does not know yet that the call is over.
        raise asyncio.CancelledError from gone
    raise AssertionError("abort raises in any case")
