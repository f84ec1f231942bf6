"""Port to the API keys of clients, which the shared state has: who may call, and for which tenant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Scope(StrEnum):
    """What an API key is good for."""

    INFER = "infer"
    """Everything that clients do, for the key's tenant."""
    ADMIN = "admin"
    """Everything that operators do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key without its secret.

    Attributes:
        id: Its name, by which it is listed and revoked.
        digest: SHA-256 of its secret, as hexadecimal digits. The secret has 256 random bits, so that it
            cannot be found from a digest, even without a salt.
        tenant: The tenant of all requests made with it.
        scopes: What it is good for.
        created_ns: Its creation, nanoseconds since the epoch.
        expires_ns: The time from which it is refused; None for never.
    """

    id: str
    digest: str = field(repr=False)
    tenant: str
    scopes: tuple[Scope, ...]
    created_ns: int
    expires_ns: int | None = None

    def expired(self, now_ns: int) -> bool:
        """Return whether it is refused for its age."""
        return self.expires_ns is not None and now_ns >= self.expires_ns


class ApiKeys(Protocol):
    """The API keys. The shared state has the only copy: where it is emptied, there are none.

    Every method may raise StoreUnavailableError.
    """

    async def add_api_key(self, key: ApiKey) -> None:
        """Add a key; one with the same id is replaced."""
        ...

    async def api_keys(self) -> Sequence[ApiKey]:
        """Return all keys, oldest first, expired ones included."""
        ...

    async def remove_api_key(self, id: str) -> bool:
        """Remove a key; False if there is none with this id."""
        ...
