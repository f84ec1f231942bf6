"""Reads of the responses before one: some at a time, with one deadline for all that are about to end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from qlm.domain.request import RequestRecord
from qlm.domain.shell.tasks import run_together
from qlm.gateway.http.responses_api.shown import StoredResponse
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import met_stop

RESPONSES_MAX: Final = 256
"""Responses before one, whose answers are read again for it."""

CONCURRENT_MAX: Final = 8

STOP_WAIT_S: Final = 5.0
"""Time for which one call waits for answers that met a stop string: their clients have them a moment before
the shared state knows that they are whole."""

_LOOK_S: Final = 0.02

Item = TypeVar("Item")
Result = TypeVar("Result")


class StopWaits:
    """What one call waits for."""

    def __init__(self, gateway: Gateway) -> None:
        """Begin the time for which all waits of the call last at most."""
        self._gateway = gateway
        self._until_ns = gateway.clock.now_ns() + round(STOP_WAIT_S * 1e9)

    async def at_end(self, response: StoredResponse) -> StoredResponse:
        """Return a response as it is now, or at its end if its answer has met a stop string."""
        record = response.record
        if record is None or not _has_stops(record) or not await met_stop(self._gateway, record.metadata):
            return response
        while record is not None and not record.settled and self._gateway.clock.now_ns() < self._until_ns:
            await asyncio.sleep(_LOOK_S)
            record = await self._gateway.store.record(response.metadata.id)
        return replace(response, record=record)


def _has_stops(record: RequestRecord) -> bool:
    """Return whether a request has not settled and may have met one of its stop strings."""
    return not record.settled and bool(record.metadata.answer.stop) and record.output_tokens > 0


async def read_each(read: Callable[[Item], Awaitable[Result]], items: Sequence[Item]) -> list[Result]:
    """Return what `read` returns of each item, in their order; `CONCURRENT_MAX` are read at a time.

    Raises:
        Exception: What the first call of `read` raised that failed; the others are ended.
    """
    found: dict[int, Result] = {}
    pending = iter(enumerate(items))

    async def some() -> None:
        for place, item in pending:
            found[place] = await read(item)

    if items:
        await run_together(*(some() for _ in range(min(CONCURRENT_MAX, len(items)))))
    return [found[place] for place in range(len(items))]
