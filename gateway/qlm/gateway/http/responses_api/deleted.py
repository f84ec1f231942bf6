"""DELETE /v1/responses/{id}."""

from starlette.requests import Request as HttpRequest

from qlm.gateway.api.errors import unavailable
from qlm.gateway.api.fields.responses_api import DeletedResponse
from qlm.gateway.api.responses_api.objects import response_id
from qlm.gateway.http.keys.check import key_tenant
from qlm.gateway.http.responses import Json
from qlm.gateway.http.responses_api.shown import known_response
from qlm.gateway.sessions.families.erasing import erase
from qlm.gateway.sessions.gateway import Gateway


async def delete_response(gateway: Gateway, request: HttpRequest) -> Json[DeletedResponse]:
    """Answer DELETE /v1/responses/{id}: erase a response; one that has not ended is cancelled first."""
    found = await known_response(gateway, request.path_params["id"], key_tenant(request))
    id = response_id(found.metadata.id)
    assert found.record is not None
    if not await erase(gateway, [found.record]):
        raise unavailable(f"response {id} has not ended since it was cancelled", "response_ending")
    headers = {"x-request-id": found.metadata.id}
    return Json({"id": id, "object": "response", "deleted": True}, headers)
