"""GET /v1/responses/{id}/input_items."""

from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.responses_api import InputItemList
from qlm.gateway.api.responses_api.input_items import input_items
from qlm.gateway.http.files.common import oldest_first, page_limit, page_of
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.responses import Json
from qlm.gateway.http.responses_api.shown import known_response
from qlm.gateway.sessions.gateway import Gateway

ITEMS_MAX: Final = 100
"""Items of one page."""

ITEMS_DEFAULT: Final = 20


async def list_input_items(gateway: Gateway, request: HttpRequest) -> Json[InputItemList]:
    """Answer GET /v1/responses/{id}/input_items?after=&limit=&order=: the items of its input."""
    id, query = request.path_params["id"], request.query_params
    limit = page_limit(query.get("limit"), ITEMS_DEFAULT, ITEMS_MAX)
    in_order = oldest_first(query.get("order"))
    found = await known_response(gateway, id, key_tenant(request))
    if found.state.items is None:
        message = f"the input of response {cut(id)} was too large to be kept"
        raise ApiError(status=404, message=message, param="id", code="input_not_kept")
    items = input_items(found.metadata.id, found.state.items)
    if not in_order:
        items.reverse()
    data, more = page_of(items, [each["id"] for each in items], query.get("after"), limit)
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return Json({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more})
