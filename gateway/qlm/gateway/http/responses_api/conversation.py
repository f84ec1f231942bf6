"""The conversation that a response continues: the responses before it, from the shared state."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from qlm.domain.request import RequestRecord
from qlm.gateway.api.errors import invalid
from qlm.gateway.api.responses_api.items import chat_messages
from qlm.gateway.api.responses_api.objects import response_id
from qlm.gateway.http.responses_api.shown import StoredResponse, known_response, message_of
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer

RESPONSES_MAX: Final = 256
"""Responses of one conversation, whose answers are read again for each further one."""

CONCURRENT_MAX: Final = 8

STOP_WAIT_S: Final = 5.0
"""Time for which a continuation waits for an answer that may have ended at a stop string: its client has the
answer a moment before the shared state knows that it is whole."""

_LOOK_S: Final = 0.02
_FIELD: Final = "previous_response_id"


async def earlier_messages(
    gateway: Gateway, id: str | None, tenant: str | None
) -> Sequence[Mapping[str, Any]]:
    """Return the messages up to and with the answer of a response, which may be None; no instructions.

    Args:
        gateway: The gateway.
        id: The response.
        tenant: The tenant of the caller; None for one who may see all.

    Raises:
        ApiError: A response of the conversation is unknown, has not ended well, or its input was not kept.
    """
    found = await _responses(gateway, id, tenant)
    reading = asyncio.Semaphore(CONCURRENT_MAX)

    async def answer(response: StoredResponse) -> Mapping[str, Any]:
        async with reading:
            return await _answer(gateway, response)

    answers = await asyncio.gather(*map(answer, found))
    messages: list[Mapping[str, Any]] = []
    for response, said in zip(reversed(found), reversed(answers), strict=True):
        messages += [*chat_messages(response.state.items or ()), said]
    return messages


async def _responses(gateway: Gateway, id: str | None, tenant: str | None) -> list[StoredResponse]:
    """Return the responses of a conversation, newest first."""
    found: list[StoredResponse] = []
    while id is not None:
        if len(found) == RESPONSES_MAX:
            raise invalid(
                _FIELD,
                f"{_FIELD} names a conversation of more than {RESPONSES_MAX} responses; expected fewer",
            )
        which = f", which {response_id(found[-1].metadata.id)} continues," if found else ""
        response = await known_response(gateway, id, tenant, _FIELD, which)
        if response.state.items is None:
            expected = "expected the conversation as input"
            raise invalid(_FIELD, f"{_FIELD}: the input of {id} was too large to be kept; {expected}")
        found.append(response)
        id = response.state.fields.get(_FIELD)
    return found


async def _answer(gateway: Gateway, response: StoredResponse) -> Mapping[str, Any]:
    record, id = (await at_end(gateway, response)).record, response_id(response.metadata.id)
    if record is None or not record.settled:
        raise invalid(_FIELD, f"{_FIELD}: response {id} has not ended yet; expected one that has")
    final = await final_answer(gateway, record)
    if not final.outcome.ok:
        raise invalid(
            _FIELD, f"{_FIELD}: response {id} ended as {final.outcome}; expected one with an answer"
        )
    message = await message_of(gateway, response.metadata, final)
    return {name: value for name, value in message.items() if name != "refusal"}


async def at_end(gateway: Gateway, response: StoredResponse) -> StoredResponse:
    """Return a response as it is now, after a moment if its answer may have met a stop string just before."""
    record, until_ns = response.record, gateway.clock.now_ns() + round(STOP_WAIT_S * 1e9)
    while record is not None and _may_have_stopped(record) and gateway.clock.now_ns() < until_ns:
        await asyncio.sleep(_LOOK_S)
        record = await gateway.store.record(record.metadata.id)
    return replace(response, record=record)


def _may_have_stopped(record: RequestRecord) -> bool:
    """Return whether a request that is not settled may have met one of its stop strings."""
    return not record.settled and bool(record.metadata.answer.stop) and record.output_tokens > 0
