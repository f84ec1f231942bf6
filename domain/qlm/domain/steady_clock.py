"""A clock that never goes back, based on a wall clock that may be set."""

from collections.abc import Callable
from typing import Final, NamedTuple

STEP_S: Final = 1.0
"""A larger gain of the wall clock was a setting of the clock: drift and NTP's slewing gain less."""

_STEP_NS: Final = round(STEP_S * 1e9)

BELIEVED_AFTER_S: Final = 60.0
"""A wall clock that was set forwards is followed after it has been fast for this time."""


class ClockState(NamedTuple):
    """All that a clock goes on from, nanoseconds.

    Attributes:
        last_ns: Its latest time.
        last_read_ns: The monotonic clock then.
        fast_since_ns: The monotonic clock when the wall clock was set forwards, if that is not followed yet.
    """

    last_ns: int
    last_read_ns: int
    fast_since_ns: int | None = None


class SteadyClock:
    """Follows a wall clock, smoothly if that is set.

    If the wall clock is set back, this clock runs at three quarters of its speed until the other has caught
    up. If it is set forwards, this clock follows only after `believed_after_s`, and runs on steadily before.
    """

    # Jumping back is no option: a component that waits for a time would wait again for the hour by which the
    # clock was set back, and an agent's pauses of a fifth of a second would last that long. But to make up
    # for an hour takes four. So a jump forwards, which may be a mistake that is corrected soon, is not
    # followed at once. If it was no mistake, the time was wrong before, and is wrong for a minute more.

    def __init__(
        self,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        believed_after_s: float = BELIEVED_AFTER_S,
        begun: ClockState | None = None,
    ) -> None:
        """Start at the wall clock's time, or go on with another clock of the machine.

        Args:
            wall_ns: The wall clock, nanoseconds since the epoch.
            monotonic_ns: A clock that is never set. Time that it does not count, such as a machine's sleep,
                looks like a setting of the wall clock.
            believed_after_s: Time for which the wall clock must have been fast before it is followed.
            begun: State of the other clock, on the same wall and monotonic clocks.
        """
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._believed_after_ns = round(believed_after_s * 1e9)
        state = begun or ClockState(wall_ns(), monotonic_ns())
        self._last_ns, self._last_read_ns, self._fast_since_ns = state

    def state(self) -> ClockState:
        """Return what another clock of the machine needs to go on with this one's time."""
        self.now_ns()
        return ClockState(self._last_ns, self._last_read_ns, self._fast_since_ns)

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        at_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        passed_ns = at_ns - self._last_read_ns
        fast_ns = wall_ns - self._last_ns - passed_ns
        if fast_ns < 0:
            # Rounded up: a caller that waits for the last nanosecond and reads at each must see it arrive.
            wall_ns = max(wall_ns, self._last_ns + (3 * passed_ns + 3) // 4)
        if fast_ns > _STEP_NS and not self._is_believed(at_ns):
            wall_ns = self._last_ns + passed_ns
        else:
            self._fast_since_ns = None
        self._last_ns, self._last_read_ns = wall_ns, at_ns
        return wall_ns

    def _is_believed(self, at_ns: int) -> bool:
        """Return True if the wall clock has been fast for long enough."""
        if self._fast_since_ns is None:
            self._fast_since_ns = at_ns
        return at_ns - self._fast_since_ns >= self._believed_after_ns
