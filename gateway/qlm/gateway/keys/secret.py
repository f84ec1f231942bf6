"""Secrets of API keys: how they look, and the digest that is stored in their place."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from qlm.domain.ports.api_keys import ApiKey, Scope

SECRET_PREFIX: Final = "sk-qlm-"
ID_PREFIX: Final = "key_"

SECRET_BYTES: Final = 32
"""Random bytes of a secret: it cannot be guessed, so that its digest needs no salt and no slow hash."""

_ID_BYTES: Final = 8


def digest_of(secret: str) -> str:
    """Return what is stored of a secret."""
    # A server may decode bytes that are no text to surrogates.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def make_key(
    tenant: str,
    scopes: Sequence[Scope],
    expires_ns: int | None,
    now_ns: int,
    random_hex: Callable[[int], str],
) -> tuple[ApiKey, str]:
    """Return a new key with its secret, which is nowhere else.

    Args:
        tenant: The tenant of its requests.
        scopes: What it is good for.
        expires_ns: The time from which it is refused; None for never.
        now_ns: The present.
        random_hex: Returns so many random bytes as hexadecimal digits, such as `secrets.token_hex`.
    """
    secret = SECRET_PREFIX + random_hex(SECRET_BYTES)
    key = ApiKey(
        id=ID_PREFIX + random_hex(_ID_BYTES),
        digest=digest_of(secret),
        tenant=tenant,
        scopes=tuple(scope for scope in Scope if scope in scopes),
        created_ns=now_ns,
        expires_ns=expires_ns,
    )
    return key, secret
