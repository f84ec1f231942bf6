"""/admin/v1/batches: batches of all tenants."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.gateway.api.fields.files import AdminBatch, AdminBatchList
from qlm.gateway.files.records import Batch
from qlm.gateway.http.files.batches import Change, batch_fields, changed
from qlm.gateway.http.files.common import batch_not_found, page_limit, storage_of
from qlm.gateway.http.responses import Json
from qlm.gateway.sessions.gateway import Gateway

LISTED_DEFAULT: Final = 50
LISTED_MAX: Final = 1000


async def list_all_batches(gateway: Gateway, request: HttpRequest) -> Json[AdminBatchList]:
    """Answer GET /admin/v1/batches?limit=&tenant=: the batches of all tenants, or of one, newest first."""
    query = request.query_params
    limit, tenant = page_limit(query.get("limit"), LISTED_DEFAULT, LISTED_MAX), query.get("tenant")
    storage = storage_of(gateway)
    if tenant is None:
        found: Sequence[Batch] = await storage.call(storage.batches.newest, limit)
    else:
        found, _ = await storage.call(storage.batches.page, tenant, None, limit)
    return Json({"batches": [_fields(each) for each in found]})


async def get_any_batch(gateway: Gateway, request: HttpRequest) -> Json[AdminBatch]:
    """Answer GET /admin/v1/batches/{id}: a batch with its progress."""
    return Json(_fields(await _known(gateway, request)))


async def cancel_any_batch(gateway: Gateway, request: HttpRequest) -> Json[AdminBatch]:
    """Answer POST /admin/v1/batches/{id}/cancel: as POST /v1/batches/{id}/cancel of its client."""
    return await _changed(gateway, request, "cancel")


async def pause_any_batch(gateway: Gateway, request: HttpRequest) -> Json[AdminBatch]:
    """Answer POST /admin/v1/batches/{id}/pause: as POST /v1/batches/{id}/pause of its client."""
    return await _changed(gateway, request, "pause")


async def resume_any_batch(gateway: Gateway, request: HttpRequest) -> Json[AdminBatch]:
    """Answer POST /admin/v1/batches/{id}/resume: as POST /v1/batches/{id}/resume of its client."""
    return await _changed(gateway, request, "resume")


async def _changed(gateway: Gateway, request: HttpRequest, change: Change) -> Json[AdminBatch]:
    found = await _known(gateway, request)
    return Json(_fields(await changed(found, storage_of(gateway), change)))


async def _known(gateway: Gateway, request: HttpRequest) -> Batch:
    id = request.path_params["id"]
    storage = storage_of(gateway)
    found = await storage.call(storage.batches.find, id)
    if found is None:
        raise batch_not_found(id)
    return found


def _fields(batch: Batch) -> AdminBatch:
    return {**batch_fields(batch), "tenant": batch.spec.tenant}
