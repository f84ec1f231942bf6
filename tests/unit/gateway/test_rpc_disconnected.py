"""A gRPC client that leaves is no defect of the gateway, whenever the call learns of it."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from grpc import aio

from qlm.gateway.core.access import AccessRules
from qlm.gateway.rpc.service import QlmService
from qlm.gateway.sessions.gateway import Gateway


async def failing(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    ("error", "done"), [(aio.InternalError('Failed "execute_batch"'), False), (ValueError("closed"), True)]
)
async def test_writing_that_fails_because_the_client_has_left_cancels_the_call(
    error: Exception, done: bool
) -> None:
    """The batch of an answer fails before the context knows that the call is over."""
    noted = list[Exception]()
    gateway = SimpleNamespace(failed=lambda error, doing: noted.append(error))
    service = QlmService(cast(Gateway, gateway), AccessRules())
    context: Any = SimpleNamespace(done=lambda: done)
    with pytest.raises(asyncio.CancelledError):
        await service._answered(context, failing(error))
    assert not noted
