"""Pauses between the attempts of an event."""

from typing import Final

from qlm.gateway.webhooks.limits import WebhookLimits

SPARE_FIRST_S: Final = 1.0
"""Longest pause of an event that is spared for the first time; it doubles with each claim."""

SPARE_MAX_S: Final = 60.0
"""Longest pause of an event that is spared."""


def spare_s(claims: int, chance: float) -> float:
    """Return the pause of an event that is spared, seconds: it doubles with each claim.

    So events that wait for an endpoint which is slow or down are seldom looked at, however many they are.

    Args:
        claims: Claims of the event so far, at least 1.
        chance: A number from 0 to 1 by chance, so that events that were spared together come apart.
    """
    longest_s = min(SPARE_FIRST_S * 2.0 ** min(claims - 1, 40), SPARE_MAX_S)
    return longest_s * (0.5 + chance / 2)


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
