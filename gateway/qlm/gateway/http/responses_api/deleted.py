"""DELETE /v1/responses/{id}."""

import asyncio
from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.domain.request import RequestRecord, RequestState
from qlm.gateway.api.errors import unavailable
from qlm.gateway.api.fields.responses_api import DeletedResponse
from qlm.gateway.api.reasons import BY_CLIENT
from qlm.gateway.api.responses_api.objects import response_id
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.responses import Json
from qlm.gateway.http.responses_api.shown import known_response
from qlm.gateway.sessions.gateway import Gateway

END_WAIT_S: Final = 5.0
"""Time for which a delete waits until the engine has ended its request: usually one step."""

_LOOK_S: Final = 0.05


async def delete_response(gateway: Gateway, request: HttpRequest) -> Json[DeletedResponse]:
    """Answer DELETE /v1/responses/{id}: erase a response; one that has not ended is cancelled first."""
    found = await known_response(gateway, request.path_params["id"], key_tenant(request))
    id = response_id(found.metadata.id)
    assert found.record is not None
    record = await _ended(gateway, found.record)
    if record is None or not await gateway.store.erase(record.metadata):
        raise unavailable(f"response {id} has not ended since it was cancelled", "response_ending")
    headers = {"x-request-id": found.metadata.id}
    return Json({"id": id, "object": "response", "deleted": True}, headers)


async def _ended(gateway: Gateway, record: RequestRecord) -> RequestRecord | None:
    """Cancel a request unless it has ended, and return its record at the end; None if that takes too long."""
    if record.state is RequestState.ENDED:
        return record
    now = await gateway.store.cancel(record.metadata.id, why=BY_CLIENT)
    until_ns = gateway.clock.now_ns() + round(END_WAIT_S * 1e9)
    while now is not None and now.state is not RequestState.ENDED:
        if gateway.clock.now_ns() > until_ns:
            return None
        await asyncio.sleep(_LOOK_S)
        now = await gateway.store.record(record.metadata.id)
    return now
