"""The conversation that a response continues: the responses before it, from the shared state."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from qlm.gateway.api.errors import invalid
from qlm.gateway.api.responses_api.items import chat_messages
from qlm.gateway.api.responses_api.objects import response_id
from qlm.gateway.http.responses_api.earlier import RESPONSES_MAX, StopWaits, read_each
from qlm.gateway.http.responses_api.shown import StoredResponse, known_response, message_of
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer

_FIELD: Final = "previous_response_id"


async def earlier_messages(
    gateway: Gateway, id: str | None, tenant: str | None, waits: StopWaits
) -> Sequence[Mapping[str, Any]]:
    """Return the messages up to and with the answer of a response, which may be None; no instructions.

    Args:
        gateway: The gateway.
        id: The response.
        tenant: The tenant of the caller; None for one who may see all.
        waits: What the call waits for.

    Raises:
        ApiError: A response of the conversation is unknown, has not ended well, or its input was not kept.
    """
    found = await _responses(gateway, id, tenant)
    answers = await read_each(partial(_answer, gateway, waits), found)
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


async def _answer(gateway: Gateway, waits: StopWaits, response: StoredResponse) -> Mapping[str, Any]:
    record, id = (await waits.at_end(response)).record, response_id(response.metadata.id)
    if record is None or not record.settled:
        raise invalid(_FIELD, f"{_FIELD}: response {id} has not ended yet; expected one that has")
    final = await final_answer(gateway, record)
    if not final.outcome.ok:
        raise invalid(
            _FIELD, f"{_FIELD}: response {id} ended as {final.outcome}; expected one with an answer"
        )
    message = await message_of(gateway, response.metadata, final)
    return {name: value for name, value in message.items() if name != "refusal"}
