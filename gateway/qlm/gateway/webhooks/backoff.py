"""Pauses between the attempts of an event."""

from qlm.gateway.webhooks.limits import WebhookLimits


def pause_s(failures: int, limits: WebhookLimits, chance: float) -> float:
    """Return the pause after a failure: it doubles with each, and is drawn from its upper half.

    Args:
        failures: Failures so far, at least 1.
        limits: The first and the longest pause.
        chance: A number from 0 to 1 by chance, so that events that failed together come apart.
    """
    doublings = min(failures - 1, 40)
    longest_s = min(limits.retry_first_s * 2.0**doublings, limits.retry_max_s)
    return longest_s * (0.5 + chance / 2)
