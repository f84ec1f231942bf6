"""What a caller must show: an API key that exists, has not expired, and has the scope of the call."""

from collections.abc import Sequence
from typing import Final

from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.gateway.api.callers import Headers, operator_errors
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.access import AccessRules
from qlm.gateway.keys.key_ring import KeyRing

_CHALLENGE: Final = {"www-authenticate": "Bearer"}
_WHERE: Final = "expected `authorization: Bearer` with one that `qlm keys create` made"


async def asked_key(ring: KeyRing, headers: Headers, scope: Scope, now_ns: int) -> ApiKey:
    """Return the API key that a call came with.

    Args:
        ring: The keys.
        headers: Those of the call.
        scope: What the key must be good for.
        now_ns: The present.

    Raises:
        ApiError: There is none or a wrong one (401), or it is not good for this call (403).
        StoreUnavailableError: The keys cannot be read.
    """
    secrets = given_secrets(headers)
    if not secrets:
        raise _no_key("the API key is missing")
    key = await ring.find(secrets[0])
    if key is None:
        raise _no_key("the API key is wrong or was revoked")
    if key.expired(now_ns):
        raise _no_key(f"the API key {key.id} has expired")
    if scope not in key.scopes:
        message = f"the API key {key.id} lacks the scope {scope}; expected a key that has it"
        raise ApiError(status=403, message=message, code="missing_scope")
    return key


async def operator_refusal(
    ring: KeyRing, headers: Headers, rules: AccessRules, now_ns: int
) -> ApiError | None:
    """Return the error of a caller who is no operator: neither by the rules nor by an API key; None for one.

    Raises:
        StoreUnavailableError: The keys cannot be read.
    """
    refusal = next(operator_errors(headers, rules), None)
    if refusal is None or not given_secrets(headers):
        return refusal
    try:
        await asked_key(ring, headers, Scope.ADMIN, now_ns)
    except ApiError as error:
        # What is no API key may be meant as the admin token.
        return error if error.status == 403 else refusal
    return None


def given_secrets(headers: Headers) -> Sequence[str]:
    """Return the secrets that a call came with: of `authorization: Bearer`, then of `x-api-key`."""
    found = []
    for value in headers("authorization"):
        scheme, _, secret = value.strip().partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            found.append(secret.strip())
    return [*found, *(value.strip() for value in headers("x-api-key") if value.strip())]


def _no_key(problem: str) -> ApiError:
    message = f"{problem}; {_WHERE}"
    return ApiError(status=401, message=message, code="invalid_api_key", headers=_CHALLENGE)
