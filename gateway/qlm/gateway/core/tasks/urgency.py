"""What the deadline of a task asks of one of its calls: a pure function of what is left and what follows."""

from dataclasses import dataclass
from math import sqrt
from typing import Final

from qlm.rct_estimator.normal import Normal

HOPE_DEVIATIONS: Final = 1.0
"""Standard deviations below the mean that what is left of a task may take at best."""

CALL_S_MIN: Final = 0.001
"""Shortest deadline of a call, in seconds."""


@dataclass(frozen=True, slots=True)
class Urgency:
    """Urgency of a call.

    Attributes:
        due_s: Time after its arrival by which the call must end for its task to be in time.
        hopeless: The task cannot be in time any more: its calls yield to those of others.
    """

    due_s: float
    hopeless: bool


def call_urgency(left_s: float, own: Normal, later: Normal) -> Urgency:
    """Return the urgency of a call.

    All slack is the call's: it is due when the calls after it, with the pauses before them, just fit at
    their best. A call that needs no slack leaves it to the next one.

    Args:
        left_s: Time until the task's deadline; positive.
        own: Time of the call once it is served.
        later: Time of all calls after it, and of the pauses before them.
    """
    if _at_best_s(own + later) >= left_s:
        return Urgency(left_s, hopeless=True)
    return Urgency(max(left_s - _at_best_s(later), min(left_s, CALL_S_MIN)), hopeless=False)


def _at_best_s(time: Normal) -> float:
    return max(0.0, time.mean - HOPE_DEVIATIONS * sqrt(time.var))
