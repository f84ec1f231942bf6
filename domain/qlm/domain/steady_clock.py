"""A clock that never goes back, on a wall clock that may be set."""

from collections.abc import Callable
from typing import Final

STEP_S: Final = 1.0
"""What a wall clock gains at once beyond this, somebody has set: drift and NTP's slewing gain less."""

_STEP_NS: Final = round(STEP_S * 1e9)

BELIEVED_AFTER_S: Final = 60.0
"""A wall clock that was set forwards is believed once it has been ahead for so long."""


class SteadyClock:
    """Follows a wall clock; set back, it goes at three quarters of its speed until that has caught up.

    Whoever waits until a moment must not wait again for the hour by which somebody set the clock back:
    an agent's pauses of a fifth of a second would last so long. But to give back an hour takes four. So the
    wall clock is not followed at once when it is set forwards, which may be a mistake that is corrected soon:
    meanwhile this clock goes on as if nobody had set the other. If it was no mistake, the time had been
    wrong until then, and is so for a minute more.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        believed_after_s: float = BELIEVED_AFTER_S,
    ) -> None:
        """Begin with the wall clock's time.

        Args:
            wall_ns: The wall clock, nanoseconds since the epoch.
            monotonic_ns: A clock that nobody sets, nanoseconds since any moment. What it leaves out, a
                machine's sleep for instance, looks as if the wall clock had been set.
            believed_after_s: How long the wall clock must have been ahead.
        """
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._believed_after_ns = round(believed_after_s * 1e9)
        self._told_ns = wall_ns()
        self._told_at_ns = monotonic_ns()
        self._ahead_since_ns: int | None = None

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        at_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        passed_ns = at_ns - self._told_at_ns
        ahead_ns = wall_ns - self._told_ns - passed_ns
        if ahead_ns < 0:
            # Rounded up: who waits for the last nanosecond, and asks at each, must see it come.
            wall_ns = max(wall_ns, self._told_ns + (3 * passed_ns + 3) // 4)
        if ahead_ns > _STEP_NS and not self._stands(at_ns):
            wall_ns = self._told_ns + passed_ns
        else:
            self._ahead_since_ns = None
        self._told_ns, self._told_at_ns = wall_ns, at_ns
        return wall_ns

    def _stands(self, at_ns: int) -> bool:
        """Whether the wall clock has been ahead for long enough."""
        if self._ahead_since_ns is None:
            self._ahead_since_ns = at_ns
        return at_ns - self._ahead_since_ns >= self._believed_after_ns
