"""Port to time."""

from typing import Protocol


class Clock(Protocol):
    """Source of time. Times inside QLM are integer nanoseconds since the epoch."""

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        ...
