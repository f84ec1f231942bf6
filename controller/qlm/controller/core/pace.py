"""Pace of the controller's turns: a long queue is planned less often, and the loop leaves the core free.

The processor time of decisions counts, in their own threads. A turn that waits for slow servers is no reason
to plan less often, and its repairs are urgent then: paced by elapsed time, it indexed accepted requests 15 s
after Redis could write again. Nor is what other threads of the process compute: paced by the whole process, a
new class waited up to 8 s for its first plan while the planner was loaded.
"""

from typing import Final

UNPACED_S: Final = 0.1
"""Decisions of up to this processor time are followed by the shortest pause only."""

PAUSES_PER_TURN: Final = 30.0
"""Pause after a longer one, over what it took beyond `UNPACED_S`."""

PAUSE_MAX_S: Final = 8.0
"""Longest pause."""


def pause_s(took_s: float, least_s: float) -> float:
    """Return the pause after a turn, wakeups or not.

    Args:
        took_s: Processor time of its decision.
        least_s: Shortest pause.
    """
    return max(least_s, min(PAUSE_MAX_S, PAUSES_PER_TURN * (took_s - UNPACED_S)))
