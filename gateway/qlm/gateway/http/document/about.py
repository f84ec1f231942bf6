"""The document of the API for programs and people, of each listener's own routes; and the version."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from starlette.requests import Request as HttpRequest

from qlm.gateway.api.fields.service import ApiDocument, Version
from qlm.gateway.http.responses import Html, Json, StoredJson
from qlm.gateway.sessions.gateway import Gateway

CLIENTS: Final = "openapi.json"
"""File of the document for clients, written by `make reference`."""

OPERATORS: Final = "openapi-admin.json"
"""File of the document for operators."""

_PAGE: Final = "page.html"
_OFFLINE: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
"""The page loads nothing but the document beside it."""


async def get_document(gateway: Gateway, request: HttpRequest) -> StoredJson[ApiDocument]:
    """Answer GET /openapi.json: the routes of this listener, as an OpenAPI 3.1 document."""
    return StoredJson(_file(CLIENTS))


async def get_admin_document(gateway: Gateway, request: HttpRequest) -> StoredJson[ApiDocument]:
    """Answer GET /openapi.json: the routes of this listener, as an OpenAPI 3.1 document."""
    return StoredJson(_file(OPERATORS))


async def get_page(gateway: Gateway, request: HttpRequest) -> Html:
    """Answer GET /docs: the same as a page to read, which loads nothing from elsewhere."""
    return Html(_file(_PAGE), _OFFLINE)


async def get_version(gateway: Gateway, request: HttpRequest) -> Json[Version]:
    """Answer GET /version: the version of QLM."""
    return Json({"version": version("qlm-serving")})


@cache
def _file(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
