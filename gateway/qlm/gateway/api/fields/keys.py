"""API keys."""

from collections.abc import Sequence
from typing import TypedDict


class KeyFields(TypedDict):
    """An API key without its secret."""

    id: str  # Its name, by which it is revoked
    object: str  # `qlm.api_key`
    tenant: str  # The tenant of its requests
    scopes: Sequence[str]  # What it is good for: `infer`, `admin`
    created_s: float  # Its creation, seconds since the epoch
    expires_s: float | None  # The time from which it is refused; null for never
    expired: bool  # Whether it is refused for its age


class NewKey(KeyFields):
    """A new API key with its secret."""

    secret: str  # Clients send it as `authorization: Bearer`; it is shown here only


class KeyList(TypedDict):
    """API keys."""

    keys: Sequence[KeyFields]  # Oldest first


class RevokedKey(TypedDict):
    """A revoked API key."""

    id: str  # Its name
    revoked: bool  # True: within 2 s no gateway accepts it
