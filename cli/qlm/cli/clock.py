"""The clock of production."""

import time
from typing import Final

from qlm.domain.steady_clock import SteadyClock


class SystemClock(SteadyClock):
    """The machine's wall clock; machines of one cluster keep theirs within a fraction of a second (NTP)."""

    def __init__(self) -> None:
        """Begin with the wall clock's time."""
        super().__init__(time.time_ns, _uptime_ns)


def _uptime_ns() -> int:
    """Time that nobody sets; on Linux what the machine slept counts, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if _TELLS_UPTIME else time.monotonic_ns()


_TELLS_UPTIME: Final = hasattr(time, "CLOCK_BOOTTIME")
