"""Requests whose prompts and answers are erased."""

import asyncio
from collections.abc import Sequence
from typing import Final

from qlm.domain.request import RequestRecord, RequestState
from qlm.gateway.api.reasons import BY_CLIENT
from qlm.gateway.sessions.gateway import Gateway

END_WAIT_S: Final = 5.0
"""Time for which an erasure waits until the engines have ended its requests: usually one step."""

_LOOK_S: Final = 0.05


async def erase(gateway: Gateway, records: Sequence[RequestRecord]) -> bool:
    """Erase requests; those that have not ended are cancelled first. False if that takes too long.

    Then another call goes on with it. The first request of a family, by which the others are found, is erased
    last: where this is interrupted, the call can be repeated.
    """
    open_ones = [each for each in records if each.state is not RequestState.ENDED]
    for each in open_ones:
        await gateway.store.cancel(each.metadata.id, why=BY_CLIENT)
    until_ns = gateway.clock.now_ns() + round(END_WAIT_S * 1e9)
    while open_ones and (open_ones := await _still_open(gateway, open_ones)):
        if gateway.clock.now_ns() > until_ns:
            return False
        await asyncio.sleep(_LOOK_S)
    for each in reversed(records):
        if not await _erased(gateway, each):
            return False
    return True


async def _erased(gateway: Gateway, record: RequestRecord) -> bool:
    """Erase a request; True also if it is no longer stored."""
    id = record.metadata.id
    return await gateway.store.erase(record.metadata) or await gateway.store.record(id) is None


async def _still_open(gateway: Gateway, records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Return those of some requests that have not ended."""
    now = [await gateway.store.record(each.metadata.id) for each in records]
    return [each for each in now if each is not None and each.state is not RequestState.ENDED]
