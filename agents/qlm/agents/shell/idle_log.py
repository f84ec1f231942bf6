"""Log of long idle intervals beside waiting work, with the reason of the agent."""

import logging
from collections.abc import Callable
from typing import Final

from qlm.agents.core.stats.gpu_time import BESIDE_WORK, Interval
from qlm.domain.ids import InstanceId

log = logging.getLogger("qlm.agents")

LOGGED_NS: Final = 2_000_000_000
"""Shortest interval that is logged."""


def idle_log(instance: InstanceId) -> Callable[[Interval], None]:
    """Return a function that logs the intervals of an instance's account that deserve it."""

    def note(interval: Interval) -> None:
        if interval.use not in BESIDE_WORK or interval.lasts_ns < LOGGED_NS:
            return
        log.info(
            "%s: idle for %.1f s with %s awake while %s waited: %s",
            instance,
            interval.lasts_ns / 1e9,
            interval.activity.model,
            ", ".join(interval.activity.waiting),
            interval.activity.why,
        )

    return note
