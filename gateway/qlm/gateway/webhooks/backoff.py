"""Pauses between the attempts of an event."""

from typing import Final

from qlm.gateway.webhooks.limits import WebhookLimits

SPARE_FIRST_S: Final = 1.0
"""Longest pause of an event that is spared for the first time; it doubles with each claim."""

SPARE_MAX_S: Final = 60.0
"""Longest pause of an event that is spared."""

BUSY_MAX_S: Final = 4.0
"""Longest pause of an event whose endpoint is only busy, while few wait."""

BUSY_PER_S: Final = 100
"""Events of busy endpoints that are due in a second, about, where more wait than come due in `BUSY_MAX_S`."""


def spare_s(claims: int, longest_s: float, chance: float) -> float:
    """Return the pause of an event that is spared, seconds: it doubles with each claim.

    Args:
        claims: Claims of the event so far, at least 1.
        longest_s: The longest pause, seconds.
        chance: A number from 0 to 1 by chance, so that events that were spared together come apart.
    """
    doubled_s = SPARE_FIRST_S * 2.0 ** min(claims - 1, 40)
    return min(doubled_s, longest_s) * (0.5 + chance / 2)


def busy_max_s(waiting: int) -> float:
    """Return the longest pause of an event whose endpoint is only busy, seconds: short, if few events wait.

    So the endpoint soon has the next one, and the events that come due stay few, however many wait.

    Args:
        waiting: Events that wait in the deployment.
    """
    return min(max(BUSY_MAX_S, waiting / BUSY_PER_S), SPARE_MAX_S)


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
