"""/v1/batches: batches created, listed, looked up, cancelled."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from starlette.requests import Request as HttpRequest

from qlm.domain.formats.durations import duration_s
from qlm.domain.shown import cut
from qlm.gateway.api.bodies.files import (
    METADATA_CHARACTERS_MAX,
    METADATA_KEY_CHARACTERS_MAX,
    METADATA_MAX,
    BatchBody,
)
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.errors import ApiError, invalid, retry_headers, shown
from qlm.gateway.api.fields.files import BatchFields, BatchList
from qlm.gateway.files.records import Batch, BatchSpec
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.completions import read_body
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.files.common import (
    batch_not_found,
    caller_tenant,
    file_not_found,
    not_listed,
    page_limit,
    storage_of,
)
from qlm.gateway.http.files.files import lifetime_s
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.http.responses import Json
from qlm.gateway.sessions.gateway import Gateway

BODY_BYTES_MAX: Final = 64 * 1024

WINDOW_MIN_S: Final = 60
WINDOW_MAX_S: Final = 30 * 86_400
"""Longest completion window, as of any objective."""

TOO_MANY: Final = "too_many_batches"

Change = Literal["cancel", "pause", "resume"]
"""What a client or an operator may do to a batch."""

_FIELDS: Final = tuple(BatchBody.model_fields)


@accepts(BatchBody)
async def create_batch(gateway: Gateway, request: HttpRequest) -> Json[BatchFields]:
    """Answer POST /v1/batches: a batch of the lines of a file, which begins at once."""
    storage, tenant = storage_of(gateway), caller_tenant(request)
    plain = parse_json(await read_body(request, BODY_BYTES_MAX))
    if unknown := sorted(plain.keys() - set(_FIELDS)):
        message = f"{cut(unknown[0])} is no field of a batch; expected {', '.join(_FIELDS)}"
        raise invalid(cut(unknown[0]), message, "unknown_parameter")
    now_s = gateway.clock.now_ns() // 10**9
    spec = BatchSpec(
        id=storage.batches.new_id(),
        tenant=tenant,
        endpoint=_endpoint(plain),
        window=_text(plain, "completion_window"),
        input_file_id=_text(plain, "input_file_id"),
        created_s=now_s,
        expires_s=now_s + _window_s(plain),
        metadata=_metadata(plain),
        output_kept_s=_output_kept_s(plain, storage.limits.kept_s),
    )
    found = await storage.call(storage.files.get, tenant, spec.input_file_id)
    if found is None:
        raise file_not_found(spec.input_file_id)
    if found.purpose != "batch":
        message = f"the purpose of the input file is {found.purpose}; expected batch"
        raise invalid("input_file_id", message)
    await _check_room(storage, tenant)
    try:
        return Json(batch_fields(await storage.call(storage.batches.add, spec)))
    except FileNotFoundError as error:  # deleted meanwhile
        raise file_not_found(spec.input_file_id) from error


async def list_batches(gateway: Gateway, request: HttpRequest) -> Json[BatchList]:
    """Answer GET /v1/batches?after=&limit=: the batches of the tenant, newest first."""
    query = request.query_params
    storage = storage_of(gateway)
    limit = page_limit(query.get("limit"))
    tenant, after = caller_tenant(request), query.get("after")
    try:
        page, more = await storage.call(storage.batches.page, tenant, after, limit)
    except LookupError as error:
        raise not_listed(after) from error
    data = [batch_fields(each) for each in page]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return Json({"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more})


async def get_batch(gateway: Gateway, request: HttpRequest) -> Json[BatchFields]:
    """Answer GET /v1/batches/{id}: a batch with its progress."""
    return Json(batch_fields(await _known(gateway, request)))


async def cancel_batch(gateway: Gateway, request: HttpRequest) -> Json[BatchFields]:
    """Answer POST /v1/batches/{id}/cancel: cancel what has no answer yet; answers stay."""
    found = await _known(gateway, request)
    return Json(batch_fields(await changed(found, storage_of(gateway), "cancel")))


async def pause_batch(gateway: Gateway, request: HttpRequest) -> Json[BatchFields]:
    """Answer POST /v1/batches/{id}/pause: begin no further lines; those in work end."""
    found = await _known(gateway, request)
    return Json(batch_fields(await changed(found, storage_of(gateway), "pause")))


async def resume_batch(gateway: Gateway, request: HttpRequest) -> Json[BatchFields]:
    """Answer POST /v1/batches/{id}/resume: go on with the lines of a paused batch."""
    found = await _known(gateway, request)
    return Json(batch_fields(await changed(found, storage_of(gateway), "resume")))


async def changed(found: Batch, storage: Storage, change: Change) -> Batch:
    """Cancel, pause or resume a batch, and return it as it is then.

    Raises:
        ApiError: It has ended, or is gone.
    """
    if found.ended:
        message = f"the batch is {found.status}; expected one that has not ended"
        raise ApiError(status=409, message=message, param="id", code="batch_ended")
    tenant, id = found.spec.tenant, found.spec.id
    batches = storage.batches
    changes = {"cancel": batches.cancel, "pause": batches.pause, "resume": batches.resume}
    await storage.call(changes[change], tenant, id)
    after = await storage.call(batches.get, tenant, id)
    if after is None:
        raise batch_not_found(id)
    return after


def batch_fields(batch: Batch) -> BatchFields:
    """Return a batch as OpenAI's clients expect it."""
    spec, state = batch.spec, batch.state
    ended_s = {state.status: state.ended_s} if batch.ended else {}
    errors: Any = {"object": "list", "data": [dict(each) for each in state.errors]} if state.errors else None
    return {
        "id": spec.id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "errors": errors,
        "input_file_id": spec.input_file_id,
        "completion_window": spec.window,
        "status": batch.status,
        "output_file_id": state.output_file_id,
        "error_file_id": state.error_file_id,
        "created_at": spec.created_s,
        "in_progress_at": state.started_s,
        "expires_at": spec.expires_s,
        "finalizing_at": state.finalizing_s,
        "completed_at": ended_s.get("completed"),
        "failed_at": ended_s.get("failed"),
        "expired_at": ended_s.get("expired"),
        "cancelling_at": batch.cancel_s,
        "cancelled_at": ended_s.get("cancelled"),
        "paused_at": batch.pause_s,
        "request_counts": {"total": state.total, "completed": state.completed, "failed": state.failed},
        "metadata": spec.metadata,
    }


async def _known(gateway: Gateway, request: HttpRequest) -> Batch:
    id = request.path_params["id"]
    storage = storage_of(gateway)
    found = await storage.call(storage.batches.get, caller_tenant(request), id)
    if found is None:
        raise batch_not_found(id)
    return found


async def _check_room(storage: Storage, tenant: str) -> None:
    most = storage.limits.open_batches_max
    if (count := await storage.call(storage.batches.count_open, tenant)) >= most:
        message = (
            f"{count} batches of the tenant have not ended; expected fewer than {most} "
            "(files.open_batches_max): wait for one, or cancel one"
        )
        raise ApiError(
            status=429,
            message=message,
            kind="rate_limit_error",
            code=TOO_MANY,
            headers=retry_headers(None) | {"x-llm-d-request-dropped-reason": TOO_MANY},
        )


def _text(plain: Mapping[str, Any], name: str) -> str:
    value = plain.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(name, f"{name} is {shown(value)}; expected a text")
    return value


def _endpoint(plain: Mapping[str, Any]) -> str:
    value = plain.get("endpoint")
    if not isinstance(value, str) or value not in LINE_ROUTES:
        raise invalid("endpoint", f"endpoint is {shown(value)}; expected one of {', '.join(LINE_ROUTES)}")
    return value


def _window_s(plain: Mapping[str, Any]) -> int:
    name = "completion_window"
    return duration_s(name, _text(plain, name), WINDOW_MIN_S, WINDOW_MAX_S)


def _metadata(plain: Mapping[str, Any]) -> Mapping[str, str]:
    value = plain.get("metadata") or {}
    sound = isinstance(value, dict) and len(value) <= METADATA_MAX
    if not sound or not all(
        len(key) <= METADATA_KEY_CHARACTERS_MAX
        and isinstance(each, str)
        and len(each) <= METADATA_CHARACTERS_MAX
        for key, each in value.items()
    ):
        expected = (
            f"an object of at most {METADATA_MAX} texts of at most {METADATA_CHARACTERS_MAX} characters, "
            f"with keys of at most {METADATA_KEY_CHARACTERS_MAX}"
        )
        raise invalid("metadata", f"metadata is {shown(value)}; expected {expected}")
    return dict(value)


def _output_kept_s(plain: Mapping[str, Any], kept_s: int) -> int:
    name = "output_expires_after"
    value = plain.get(name) or {}
    if not isinstance(value, dict):
        raise invalid(name, f"{name} is {shown(value)}; expected an object with anchor and seconds")
    return lifetime_s(value, kept_s, f"{name}.{{}}")
