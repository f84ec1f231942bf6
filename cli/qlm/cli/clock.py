"""The clock of production."""

import time

from qlm.domain.steady_clock import SteadyClock


class SystemClock(SteadyClock):
    """The machine's wall clock; machines of one cluster keep theirs within a fraction of a second (NTP)."""

    def __init__(self) -> None:
        """Begin with the wall clock's time."""
        super().__init__(time.time_ns, time.monotonic_ns)
