"""Identities that a retry finds again, on any gateway."""

import hashlib
from typing import Any, Final

import orjson

from qlm.domain.ids import RequestId

ATTEMPTS_MAX: Final = 16
"""How often one key may be tried anew after an end that is worth a retry."""


def keyed_id(tenant: str, key: str, attempt: int) -> RequestId:
    """Derive the id of a request that came with an Idempotency-Key.

    Args:
        tenant: Keys of different tenants never meet.
        key: The header.
        attempt: Grows when the former request of that key ended without an answer but may be retried.
    """
    digest = hashlib.blake2b(orjson.dumps([tenant, key, attempt]), digest_size=16)
    return RequestId(digest.hexdigest())


def fingerprint(body: dict[str, Any]) -> str:
    """Digest a body, whatever the order of its fields."""
    plain = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(plain, digest_size=16).hexdigest()
