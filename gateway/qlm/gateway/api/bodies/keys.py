"""Body with which operators create an API key."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from qlm.gateway.api.translate import TENANT_CHARACTERS_MAX

LIFETIME_MAX_S: Final = 10 * 365 * 86_400
"""Longest lifetime of a key that expires."""


class KeyBody(BaseModel):
    """An API key to create."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # The tenant of requests with it.
    tenant: Annotated[str, Field(min_length=1, max_length=TENANT_CHARACTERS_MAX)]
    # What it allows: calls of clients, of operators, or both.
    scopes: Annotated[list[Literal["infer", "admin"]], Field(min_length=1)] = ["infer"]
    # Seconds after which it expires; never without.
    expires_in_s: Annotated[float, Field(ge=1, le=LIFETIME_MAX_S)] | None = None
