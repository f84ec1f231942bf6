"""The order of service, shared by planner, controller and agents: priority, deadline, arrival.

Every component must sort by the same key, or an agent serves in another order than the plan assumes.
"""

from typing import Final

from qlm.domain.group import RequestClass

_REMAINING_SHARE: Final = 0.5
"""A request may meet its deadline with this share of the mean time left, since many take less than average.

With 1 fewer objectives were met below saturation (ServeGen excerpt at 0.8 of FCFS's capacity, two seeds:
0.957 instead of 0.960), and about as many above.
"""

_LEAD_SHARE_MAX: Final = 0.9
"""However long answers take, a request is not given up before it has waited for a tenth of its target."""

SLACK_SHARE: Final = 0.25
"""Share of the tightest slack that the prompts in an engine may take (decision 50)."""

SLACK_OF_S: Final = 300.0
"""The slack of a class counts if a request of it is expected in this time."""


def deadline_or_last(deadline: float | None) -> float:
    """Return the deadline in its own unit; infinity, which sorts last, if there is none."""
    return float("inf") if deadline is None else deadline


def urgency(priority: int, deadline: float | None) -> tuple[int, float]:
    """Return the sort key of a priority and a deadline, on any clock; the smaller is served first."""
    return priority, deadline_or_last(deadline)


def class_urgency(cls: RequestClass) -> tuple[int, float]:
    """Return the sort key of requests that arrive together: the deadline is relative, milliseconds."""
    return urgency(cls.priority, cls.due_ms)


def service_order(priority: int, deadline_ns: int | None, arrival_ns: int) -> tuple[int, float, int]:
    """Return the sort key of a request: urgency, then arrival."""
    return priority, deadline_or_last(deadline_ns), arrival_ns


def lead_time_s(target_ms: float, takes_s: float) -> float:
    """Return the time before its deadline at which a request must have started to be worth an attempt.

    Args:
        target_ms: Objective of the request.
        takes_s: Mean time from the start to the objective's event (first token or end).
    """
    return min(_REMAINING_SHARE * takes_s, _LEAD_SHARE_MAX * target_ms / 1000)
