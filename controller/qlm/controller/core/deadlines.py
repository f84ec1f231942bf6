"""The requests and the deadline that the planning problem gets for a group.

A group's own deadline is that of its first request. A plan serves all of its requests, so the problem gets
their number and the deadline of the middle one.
"""

from typing import Final, NamedTuple

from qlm.domain.group import Group
from qlm.domain.urgency import lead_time_s
from qlm.domain.view import ClassView

LATE_SHARE: Final = 0.5
"""Longest wait that the problem assumes, as a share of the target, where agents do not demote late requests.

A class is served first come, first served. Giving up its late requests would give up all requests behind
them, and the class would never catch up.
"""


class DeadlineDemand(NamedTuple):
    """Demand of one group in the planning problem.

    Attributes:
        requests: Requests to serve.
        deadline_s: Deadline of the middle one, seconds since the epoch; None without a deadline.
    """

    requests: int
    deadline_s: float | None


def deadline_demand(group: Group, view: ClassView, last_ns: int, now_ns: int) -> DeadlineDemand:
    """Return the demand of a group whose late requests keep their place: all of it, however late.

    Args:
        group: A group with waiting requests.
        view: Its class.
        last_ns: Arrival of its last waiting request.
        now_ns: The present.
    """
    target_ms = group.cls.target_ms
    if target_ms is None:
        return DeadlineDemand(group.remaining, None)
    first_s, last_s = _arrivals_s(group, view, last_ns)
    middle_s = (first_s + last_s) / 2
    if not group.cls.late:
        middle_s = max(middle_s, now_ns / 1e9 - LATE_SHARE * target_ms / 1000)
    return DeadlineDemand(group.remaining, middle_s + target_ms / 1000)


def demand_with_demotion(
    group: Group, view: ClassView, last_ns: int, now_ns: int, service_s: float
) -> DeadlineDemand:
    """Return the demand of a group whose late requests agents demote (`agents.core.scheduling.demotion`).

    Demoted requests take none of the group's time, since the agent that pulls them moves them to the late
    class. Arrivals are assumed to be evenly spaced within the group.

    Args:
        group: A group with waiting requests.
        view: Its class.
        last_ns: Arrival of its last waiting request.
        now_ns: The present.
        service_s: Mean time from the start of a request to what its SLO measures, seconds.
    """
    target_ms = group.cls.target_ms
    if target_ms is None or group.cls.late:
        return DeadlineDemand(group.remaining, None)
    first_s, last_s = _arrivals_s(group, view, last_ns)
    # Requests that arrived earlier than this are demoted when an agent pulls them.
    hopeful_s = now_ns / 1e9 + lead_time_s(target_ms, service_s) - target_ms / 1000
    if hopeful_s > last_s:
        # All of it will be late work, which costs nothing wherever it stands. As long as such groups had a
        # price, plans swapped models for them and missed the deadlines of what came next.
        return DeadlineDemand(group.remaining, None)
    demoted = max(0.0, hopeful_s - first_s) / (last_s - first_s) if last_s > first_s else 0.0
    requests = max(1, group.remaining - int(demoted * group.remaining))
    return DeadlineDemand(requests, (max(first_s, hopeful_s) + last_s) / 2 + target_ms / 1000)


def _arrivals_s(group: Group, view: ClassView, last_ns: int) -> tuple[float, float]:
    """Return the arrivals of the first and the last waiting request, seconds since the epoch."""
    # The head of a group just split off another is unknown: it arrived before the newest of the class.
    first_ns = group.head_arrival_ns or view.newest_arrival_ns or last_ns
    return first_ns / 1e9, max(first_ns, last_ns) / 1e9
