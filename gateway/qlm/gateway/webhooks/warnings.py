"""What operators should know of the events of webhooks."""

from collections.abc import Sequence

from qlm.domain.ports.outbox import Outbox
from qlm.gateway.webhooks.endpoints import Webhooks


async def webhook_warnings(outbox: Outbox, webhooks: Webhooks | None) -> Sequence[str]:
    """Return a sentence for each problem: events that were dropped, or that no endpoint gets."""
    waiting, dropped = await outbox.outbox_state()
    found = []
    if dropped:
        found.append(f"events of webhooks were dropped ({dropped}) because too many waited")
    if waiting and webhooks is None:
        found.append(
            f"events of webhooks wait ({waiting}), and this gateway has no endpoints (webhooks.endpoints)"
        )
    return found
