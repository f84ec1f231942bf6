"""/admin/v1/keys: API keys created, listed, revoked."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request as HttpRequest

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.domain.shown import cut
from qlm.gateway.api.bodies.json_object import parse_json
from qlm.gateway.api.bodies.keys import LIFETIME_MAX_S, KeyBody
from qlm.gateway.api.errors import ApiError, invalid
from qlm.gateway.api.fields.keys import KeyFields, KeyList, NewKey, RevokedKey
from qlm.gateway.api.translate import TENANT_CHARACTERS_MAX
from qlm.gateway.http.completions import read_body
from qlm.gateway.http.document.accepts import accepts
from qlm.gateway.http.responses import Json
from qlm.gateway.keys.secret import make_key
from qlm.gateway.sessions.gateway import Gateway

BODY_BYTES_MAX: Final = 16 * 1024

_FIELDS: Final = tuple(KeyBody.model_fields)


@accepts(KeyBody)
async def create_key(gateway: Gateway, request: HttpRequest) -> Json[NewKey]:
    """Answer POST /admin/v1/keys: a new API key with its secret, which is not shown again."""
    plain = parse_json(await read_body(request, BODY_BYTES_MAX))
    if unknown := sorted(plain.keys() - set(_FIELDS)):
        message = f"{cut(unknown[0])} is no field of an API key; expected {', '.join(_FIELDS)}"
        raise invalid(unknown[0], message, "unknown_parameter")
    now_ns = gateway.clock.now_ns()
    expires_ns = _expires_ns(plain, now_ns)
    key, secret = make_key(_tenant(plain), _scopes(plain), expires_ns, now_ns, secrets.token_hex)
    await gateway.store.add_api_key(key)
    return Json({**_fields(key, now_ns), "secret": secret})


async def list_keys(gateway: Gateway, request: HttpRequest) -> Json[KeyList]:
    """Answer GET /admin/v1/keys: all API keys without their secrets, oldest first."""
    now_ns = gateway.clock.now_ns()
    return Json({"keys": [_fields(key, now_ns) for key in await gateway.store.api_keys()]})


async def revoke_key(gateway: Gateway, request: HttpRequest) -> Json[RevokedKey]:
    """Answer DELETE /admin/v1/keys/{id}: revoke an API key; its requests go on."""
    id = request.path_params["id"]
    if not await gateway.store.remove_api_key(id):
        raise ApiError(status=404, message=f"no API key {cut(id)}", param="id", code="key_not_found")
    return Json({"id": id, "revoked": True})


def _fields(key: ApiKey, now_ns: int) -> KeyFields:
    return {
        "id": key.id,
        "object": "qlm.api_key",
        "tenant": key.tenant,
        "scopes": list(key.scopes),
        "created_s": key.created_ns / 1e9,
        "expires_s": None if key.expires_ns is None else key.expires_ns / 1e9,
        "expired": key.expired(now_ns),
    }


def _tenant(plain: Mapping[str, Any]) -> str:
    tenant = plain.get("tenant")
    if not (isinstance(tenant, str) and 1 <= len(tenant) <= TENANT_CHARACTERS_MAX and tenant.isprintable()):
        raise InvalidValueError("tenant", tenant, f"a name of 1 to {TENANT_CHARACTERS_MAX} characters")
    return tenant


def _scopes(plain: Mapping[str, Any]) -> list[Scope]:
    given = plain.get("scopes", [Scope.INFER])
    if not (isinstance(given, list) and given and all(each in tuple(Scope) for each in given)):
        raise InvalidValueError("scopes", given, f"a list of one or more of {', '.join(Scope)}")
    return [Scope(each) for each in given]


def _expires_ns(plain: Mapping[str, Any], now_ns: int) -> int | None:
    given = plain.get("expires_in_s")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 <= given <= LIFETIME_MAX_S:
        raise InvalidValueError("expires_in_s", given, f"null, or seconds from 1 to {LIFETIME_MAX_S}")
    return now_ns + round(given * 1e9)
