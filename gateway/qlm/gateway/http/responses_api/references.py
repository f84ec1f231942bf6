"""Items of the input of a response that are references to items of responses before it."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.responses_api.body import ResponseBody
from qlm.gateway.api.responses_api.objects import response_of_item
from qlm.gateway.http.responses_api.earlier import RESPONSES_MAX, StopWaits, read_each
from qlm.gateway.http.responses_api.shown import known_response, response_now
from qlm.gateway.sessions.gateway import Gateway

_KIND: Final = "item_reference"


async def with_items(
    gateway: Gateway, body: ResponseBody, tenant: str | None, waits: StopWaits
) -> ResponseBody:
    """Return a body whose references are replaced by the items that they name.

    Args:
        gateway: The gateway.
        body: The body.
        tenant: The tenant of the caller; None for one who may see all.
        waits: What the call waits for.

    Raises:
        ApiError: A reference names no item of a response that is stored here, or one that another names; or
            the items are too large.
    """
    if isinstance(body.input, str):
        return body
    places = {place: _named(item, place) for place, item in enumerate(body.input) if _is_reference(item)}
    if not places:
        return body
    named = _by_response(places)
    known: dict[str, Mapping[str, Any]] = {}
    size = 0

    async def read(response: str) -> None:
        nonlocal size
        wanted = named[response]
        output = await _output(gateway, waits, response, tenant, next(iter(wanted.values())))
        found = {item["id"]: item for item in output if item["id"] in wanted}
        for id, where in wanted.items():
            if id not in found:
                raise _unknown(id, where)
        size += sum(len(orjson.dumps(item)) for item in found.values())
        if size > (most := gateway.limits.body_bytes_max):
            raise _too_large(most)
        known.update(found)

    await read_each(read, list(named))
    resolved = list(body.input)
    for place, item_id in places.items():
        resolved[place] = dict(known[item_id])
    return body.model_copy(update={"input": resolved})


def _by_response(places: Mapping[int, str]) -> Mapping[str, Mapping[str, str]]:
    """Return the ids of the items of each response, with the fields that name them."""
    named: dict[str, dict[str, str]] = {}
    for place, id in places.items():
        ids, where = named.setdefault(response_of_item(id), {}), f"input[{place}].id"
        if id in ids:
            raise invalid(where, f"{where} is {shown(cut(id))}, as {ids[id]} is; expected each item once")
        ids[id] = where
    if len(named) > RESPONSES_MAX:
        message = f"input has items of {len(named)} responses; expected at most {RESPONSES_MAX}"
        raise invalid("input", message)
    return named


def _is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == _KIND


def _named(item: Mapping[str, Any], place: int) -> str:
    id, where = item.get("id"), f"input[{place}].id"
    if not isinstance(id, str):
        raise invalid(where, f"{where} is {shown(id)}; expected the id of an item")
    return id


async def _output(
    gateway: Gateway, waits: StopWaits, response: str, tenant: str | None, where: str
) -> Sequence[Mapping[str, Any]]:
    """Return the items of the answer of a response; none of one that is not known or has not ended."""
    try:
        found = await waits.at_end(await known_response(gateway, response, tenant, where))
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return ()
    return (await response_now(gateway, found))["output"]


def _unknown(id: str, where: str) -> ApiError:
    expected = "expected the id of an item of a response that has ended and is stored"
    return invalid(where, f"{where} is {shown(cut(id))}; {expected}")


def _too_large(bytes_max: int) -> ApiError:
    message = f"the items that input names have more than {bytes_max} bytes; expected at most that"
    return ApiError(status=413, message=message, param="input", code="body_too_large")
