"""Clock of production."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from qlm.domain.steady_clock import SteadyClock

_HAS_BOOT_TIME: Final = hasattr(time, "CLOCK_BOOTTIME")

_UPTIME_NS: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if _HAS_BOOT_TIME else time.monotonic_ns
)
"""A time that is never set; on Linux it counts the machine's sleep, too.

It is read often, so it is no function of Python.
"""


class SystemClock(SteadyClock):
    """The machine's wall clock; NTP keeps those of a cluster within a fraction of a second."""

    def __init__(self) -> None:
        super().__init__(time.time_ns, _UPTIME_NS)
