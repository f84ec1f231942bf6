"""Endpoints of webhooks: who gets events of which ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from qlm.gateway.webhooks.limits import WebhookLimits

RESPONSE_EVENTS: Final = (
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
)
BATCH_EVENTS: Final = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A receiver of events.

    Attributes:
        name: Its name for operators.
        url: Where events are posted to.
        secrets: Keys of the signatures, one for each.
        events: Types of the events that it gets.
        tenants: Tenants whose events it gets; None for all.
    """

    name: str
    url: str = field(repr=False)
    secrets: tuple[bytes, ...] = field(repr=False)
    events: frozenset[str]
    tenants: frozenset[str] | None = None

    def wants(self, types: Iterable[str], tenant: str) -> bool:
        """Return whether it gets events of one of these types of a tenant."""
        return (self.tenants is None or tenant in self.tenants) and not self.events.isdisjoint(types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhooks:
    """All endpoints of a deployment.

    Attributes:
        endpoints: The endpoints, each with another name.
        networks: Networks that may be sent to although they are not public.
        limits: Limits of them all.
    """

    endpoints: Sequence[Endpoint]
    networks: Sequence[IPv4Network | IPv6Network] = ()
    limits: WebhookLimits = field(default_factory=WebhookLimits)

    def receivers(self, types: Iterable[str], tenant: str) -> Sequence[Endpoint]:
        """Return the endpoints that get events of one of these types of a tenant."""
        types = frozenset(types)
        return [each for each in self.endpoints if each.wants(types, tenant)]
