"""A clock that never goes back, on a wall clock that may be set."""

from collections.abc import Callable


class SteadyClock:
    """Follows a wall clock: forwards at once, backwards by going at three quarters of its speed meanwhile.

    Whoever waits until a moment must not wait again for the hour by which somebody set the clock back:
    an agent's pauses of a fifth of a second would last so long.
    """

    def __init__(self, wall_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> None:
        """Begin with the wall clock's time.

        Args:
            wall_ns: The wall clock, nanoseconds since the epoch.
            monotonic_ns: A clock that nobody sets, nanoseconds since any moment.
        """
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._told_ns = wall_ns()
        self._told_at_ns = monotonic_ns()

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        at_ns = self._monotonic_ns()
        # Rounded up: who waits for the last nanosecond, and asks at each, must see it come.
        slow_ns = self._told_ns + (3 * (at_ns - self._told_at_ns) + 3) // 4
        self._told_ns, self._told_at_ns = max(self._wall_ns(), slow_ns), at_ns
        return self._told_ns
