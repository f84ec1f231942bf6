"""Clock of production."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from qlm.domain.steady_clock import ClockState, SteadyClock

_HAS_BOOT_TIME: Final = hasattr(time, "CLOCK_BOOTTIME")

_UPTIME_NS: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if _HAS_BOOT_TIME else time.monotonic_ns
)
"""A time that is never set; on Linux it counts the machine's sleep, too.

It is read often, so it is no function of Python.
"""


class SystemClock(SteadyClock):
    """The machine's wall clock; NTP keeps those of a cluster within a fraction of a second.

    Args:
        begun: State of the clock of another process of the machine, to go on with; None begins anew.
    """

    def __init__(self, begun: ClockState | None = None) -> None:
        super().__init__(time.time_ns, _UPTIME_NS, begun=begun)
