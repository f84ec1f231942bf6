"""Items of the input of a response that are references to items of responses before it."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.responses_api.body import ResponseBody
from qlm.gateway.api.responses_api.objects import response_of_item
from qlm.gateway.http.responses_api.conversation import CONCURRENT_MAX, RESPONSES_MAX, at_end
from qlm.gateway.http.responses_api.shown import known_response, response_now
from qlm.gateway.sessions.gateway import Gateway

_KIND: Final = "item_reference"


async def with_items(gateway: Gateway, body: ResponseBody, tenant: str | None) -> ResponseBody:
    """Return a body whose references are replaced by the items that they name.

    Args:
        gateway: The gateway.
        body: The body.
        tenant: The tenant of the caller; None for one who may see all.

    Raises:
        ApiError: A reference names no item of a response that is stored here.
    """
    if isinstance(body.input, str):
        return body
    places = {place: _named(item, place) for place, item in enumerate(body.input) if _is_reference(item)}
    if not places:
        return body
    of = {response_of_item(id): place for place, id in reversed(places.items())}
    if len(of) > RESPONSES_MAX:
        raise invalid("input", f"input has items of {len(of)} responses; expected at most {RESPONSES_MAX}")
    reading = asyncio.Semaphore(CONCURRENT_MAX)

    async def read(response: str, place: int) -> Sequence[Mapping[str, Any]]:
        async with reading:
            return await _output(gateway, response, tenant, f"input[{place}].id")

    outputs = await asyncio.gather(*(read(response, place) for response, place in of.items()))
    known = {item["id"]: item for output in outputs for item in output}
    resolved = list(body.input)
    for place, id in places.items():
        if id not in known:
            raise _unknown(id, f"input[{place}].id")
        resolved[place] = dict(known[id])
    return body.model_copy(update={"input": resolved})


def _is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == _KIND


def _named(item: Mapping[str, Any], place: int) -> str:
    id, where = item.get("id"), f"input[{place}].id"
    if not isinstance(id, str):
        raise invalid(where, f"{where} is {shown(id)}; expected the id of an item")
    return id


async def _output(
    gateway: Gateway, response: str, tenant: str | None, where: str
) -> Sequence[Mapping[str, Any]]:
    """Return the items of the answer of a response; none of one that is not known or has not ended."""
    try:
        found = await at_end(gateway, await known_response(gateway, response, tenant, where))
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return ()
    return (await response_now(gateway, found))["output"]


def _unknown(id: str, where: str) -> ApiError:
    expected = "expected the id of an item of a response that has ended and is stored"
    return invalid(where, f"{where} is {shown(cut(id))}; {expected}")
