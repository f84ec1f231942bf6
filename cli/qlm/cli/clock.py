"""The clock of production."""

import time


class SystemClock:
    """The machine's wall clock; machines of one cluster keep theirs within a fraction of a second (NTP)."""

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        return time.time_ns()
