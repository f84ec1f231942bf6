"""Stored form of an API key: JSON."""

from typing import Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.ports.api_keys import ApiKey, Scope

_WHAT: Final = "a stored API key"


def encode_api_key(key: ApiKey) -> bytes:
    """Return the stored form."""
    return orjson.dumps(
        {
            "id": key.id,
            "digest": key.digest,
            "tenant": key.tenant,
            "scopes": list(key.scopes),
            "created_ns": key.created_ns,
            "expires_ns": key.expires_ns,
        }
    )


def decode_api_key(data: bytes) -> ApiKey:
    """Read what `encode_api_key` wrote; fields and scopes of later versions are left out.

    Raises:
        UndecodableDataError: A field is missing or of the wrong type.
    """
    try:
        plain = orjson.loads(data)
        expires_ns = plain["expires_ns"]
        return ApiKey(
            id=str(plain["id"]),
            digest=str(plain["digest"]),
            tenant=str(plain["tenant"]),
            scopes=tuple(scope for scope in Scope if scope in plain["scopes"]),
            created_ns=int(plain["created_ns"]),
            expires_ns=None if expires_ns is None else int(expires_ns),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"{_WHAT} cannot be read: {error!r:.200}") from error


def by_age(key: ApiKey) -> tuple[int, str]:
    """Return the sort key that puts the oldest first."""
    return key.created_ns, key.id
