"""/v1/files: files uploaded, listed, read, deleted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import BinaryIO, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from qlm.domain.shown import cut
from qlm.gateway.api.bodies.files import LIFETIME_MIN_S, FileForm
from qlm.gateway.api.errors import ApiError, invalid, shown
from qlm.gateway.api.fields.files import DeletedFile, FileFields, FileList
from qlm.gateway.core.access import FORM_TYPE
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.records import StoredFile
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.connections.body import BODY, Body
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.files.common import (
    caller_tenant,
    file_not_found,
    not_listed,
    oldest_first,
    page_limit,
    storage_of,
)
from qlm.gateway.http.files.upload import Upload, receive, skip_body
from qlm.gateway.http.responses import Json
from qlm.gateway.sessions.gateway import Gateway

_log = logging.getLogger(__name__)

PURPOSE: Final = "batch"

NAME_CHARACTERS_MAX: Final = 255

_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"
_DIGITS_MAX: Final = 12
_CONTENT_TYPE: Final = "application/octet-stream"
_CHUNK_BYTES: Final = 256 * 1024


@accepts(FileForm, media_type=FORM_TYPE)
async def create_file(gateway: Gateway, request: HttpRequest) -> Json[FileFields]:
    """Answer POST /v1/files: a file, kept for a time."""
    storage, tenant = storage_of(gateway), caller_tenant(request)
    try:
        incoming = await storage.call(storage.files.incoming, tenant)
    except Exception:
        await skip_body(request)
        raise
    try:
        upload = await receive(
            request, lambda data: storage.call(incoming.write, data), storage.limits.file_bytes_max
        )
        lifetime_s = _lifetime_s(upload, storage.limits)
        if upload.filename is None:
            raise invalid("file", "file is missing; expected a file", "missing_required_parameter")
        await _check_room(storage, tenant, upload)
        name = upload.filename[:NAME_CHARACTERS_MAX]
        made = await storage.call(incoming.keep, name, PURPOSE, lifetime_s)
    finally:
        await asyncio.shield(storage.call(incoming.discard))
    return Json(file_fields(made))


async def list_files(gateway: Gateway, request: HttpRequest) -> Json[FileList]:
    """Answer GET /v1/files?purpose=&after=&limit=&order=: the files of the tenant, newest first."""
    query = request.query_params
    storage = storage_of(gateway)
    limit, purpose = page_limit(query.get("limit")), query.get("purpose")
    tenant, after = caller_tenant(request), query.get("after")
    first = oldest_first(query.get("order"))
    try:
        page, more = await storage.call(storage.files.page, tenant, after, limit, purpose, oldest_first=first)
    except LookupError as error:
        raise not_listed(after) from error
    data = [file_fields(each) for each in page]
    begin, end = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return Json({"object": "list", "data": data, "first_id": begin, "last_id": end, "has_more": more})


async def get_file(gateway: Gateway, request: HttpRequest) -> Json[FileFields]:
    """Answer GET /v1/files/{id}: a file without its content."""
    return Json(file_fields(await known_file(gateway, request)))


async def get_content(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer GET /v1/files/{id}/content: the content of a file."""
    storage = storage_of(gateway)
    found = await known_file(gateway, request)
    headers = {"content-length": str(found.size_bytes)}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=_CONTENT_TYPE)
    try:
        file = await storage.open(storage.files.open, caller_tenant(request), found.id)
    except FileNotFoundError as error:
        raise file_not_found(found.id) from error

    def broken(error: Exception) -> None:
        body: Body | None = request.scope.get(BODY)
        if body is None:  # another server
            raise error
        if isinstance(error, FileNotFoundError):  # deleted meanwhile
            _log.info("the content of a file is cut off: %s", error)
        else:
            gateway.faults.note(_log, error, "the content of a file is cut off")
        body.cut()

    return StreamingResponse(chunks(storage, file, broken), 200, headers, _CONTENT_TYPE)


async def delete_file(gateway: Gateway, request: HttpRequest) -> Json[DeletedFile]:
    """Answer DELETE /v1/files/{id}: delete a file; batches that use it go on."""
    id = request.path_params["id"]
    storage = storage_of(gateway)
    if not await storage.call(storage.files.delete, caller_tenant(request), id):
        raise file_not_found(id)
    return Json({"id": id, "object": "file", "deleted": True})


async def known_file(gateway: Gateway, request: HttpRequest) -> StoredFile:
    """Return the file that the path names.

    Raises:
        ApiError: The tenant has no such file.
    """
    id = request.path_params["id"]
    storage = storage_of(gateway)
    found = await storage.call(storage.files.get, caller_tenant(request), id)
    if found is None:
        raise file_not_found(id)
    return found


def file_fields(file: StoredFile) -> FileFields:
    """Return a file as OpenAI's clients expect it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": file.created_s,
        "expires_at": file.expires_s,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def lifetime_s(given: Mapping[str, object], kept_s: int, prefix: str) -> int:
    """Return the lifetime of a file: as `expires_after` says, with its `anchor` and `seconds`, or `kept_s`.

    Raises:
        ApiError: A value is wrong.
    """
    if not given:
        return kept_s
    if given.get("anchor") != "created_at":
        name = prefix.format("anchor")
        raise invalid(name, f"{name} is {shown(given.get('anchor'))}; expected created_at")
    text = str(given.get("seconds"))
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not (is_number and LIFETIME_MIN_S <= int(text) <= kept_s):
        name, expected = prefix.format("seconds"), f"seconds from {LIFETIME_MIN_S} to {kept_s} (files.kept_s)"
        raise invalid(name, f"{name} is {shown(given.get('seconds'))}; expected {expected}")
    return int(text)


async def chunks(
    storage: Storage, file: BinaryIO, broken: Callable[[Exception], None]
) -> AsyncIterator[bytes]:
    """Yield the content of a file, and close it then; hand what a read fails with to `broken`, and end."""
    try:
        while chunk := await storage.call(file.read, _CHUNK_BYTES):
            yield chunk
    except Exception as error:
        broken(error)
    finally:
        storage.close_later(file)


def _lifetime_s(upload: Upload, limits: FileLimits) -> int:
    fields = dict(upload.fields)
    purpose = fields.pop("purpose", None)
    if purpose != PURPOSE:
        raise invalid("purpose", f"purpose is {shown(purpose)}; expected {PURPOSE}")
    names = {_ANCHOR: "anchor", _SECONDS: "seconds"}
    if unknown := sorted(fields.keys() - set(names)):
        message = f"{cut(unknown[0])} is no field of a file; expected file, purpose, {', '.join(names)}"
        raise invalid(cut(unknown[0]), message, "unknown_parameter")
    given = {names[name]: value for name, value in fields.items()}
    return lifetime_s(given, limits.kept_s, "expires_after[{}]")


async def _check_room(storage: Storage, tenant: str, upload: Upload) -> None:
    bytes_max = storage.limits.tenant_bytes_max
    used = await storage.call(storage.files.used_bytes, tenant)
    if used + upload.size_bytes > bytes_max:
        message = (
            f"the files of the tenant have {used} bytes, and this one {upload.size_bytes}; "
            f"expected at most {bytes_max} together: delete some"
        )
        raise ApiError(status=413, message=message, param="file", code="storage_full")
