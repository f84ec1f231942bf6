"""Signatures of Standard Webhooks: HMAC with SHA-256 over id, time and body."""

import base64
import binascii
import hmac
from collections.abc import Iterable
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64


def secret_key(secret: str) -> bytes:
    """Return the key of a secret.

    Raises:
        ValueError: It is none; the message does not show it.
    """
    expected = f"expected {SECRET_PREFIX} and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes as base64"
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"is no secret; {expected}") from None
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ValueError(f"is a secret of {len(key)} bytes; {expected}")
    return key


def signed_headers(id: str, at_s: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of an attempt, with a signature for each key.

    Args:
        id: Id of the event.
        at_s: Time of the attempt, seconds since the epoch.
        body: What is sent.
        keys: The keys.
    """
    signed = f"{id}.{at_s}.".encode() + body
    digests = (hmac.digest(key, signed, "sha256") for key in keys)
    signatures = [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(signatures),
    }
