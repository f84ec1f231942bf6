"""What a plan can do for a group: how many of its waiting requests may be in time, and when they are due."""

from typing import Final, NamedTuple

from qlm.domain.group import Group, lead_s
from qlm.domain.view import ClassView

LATE_SHARE: Final = 0.5
"""Where nobody is demoted, a late group is planned for as if it had waited for this share of its target.

Its class is first come, first served: whoever gives up what is late gives up all that comes behind it, and
the class never catches up.
"""


class Due(NamedTuple):
    """What to plan for.

    Attributes:
        requests: How many to serve.
        deadline_s: Of the middle one of them, seconds since the epoch; None if they have none.
    """

    requests: int
    deadline_s: float | None


def due(group: Group, view: ClassView, last_ns: int, now_ns: int) -> Due:
    """What of a group to plan for where late requests keep their place: all of it, and it is never given up.

    Args:
        group: With waiting requests.
        view: Its class.
        last_ns: Arrival of its last waiting request.
        now_ns: The present.
    """
    target_ms = group.cls.target_ms
    if target_ms is None:
        return Due(group.remaining, None)
    first_s, last_s = _arrivals_s(group, view, last_ns)
    middle_s = (first_s + last_s) / 2
    if not group.cls.late:
        middle_s = max(middle_s, now_ns / 1e9 - LATE_SHARE * target_ms / 1000)
    return Due(group.remaining, middle_s + target_ms / 1000)


def due_in_time(group: Group, view: ClassView, last_ns: int, now_ns: int, takes_s: float) -> Due:
    """What of a group to plan for where agents demote what cannot be in time (`agents.lateness`).

    Those requests take no time of the group's: whoever pulls it puts them aside. If they are all of it, it
    is planned for as what it will be, late work, which costs nothing wherever it stands: as long as it had a
    price, plans swapped models for it and missed what came next. Arrivals are taken as evenly spread over the
    group.

    Args:
        group: With waiting requests.
        view: Its class.
        last_ns: Arrival of its last waiting request.
        now_ns: The present.
        takes_s: Seconds from the start of a request to what its objective is about, on average.
    """
    target_ms = group.cls.target_ms
    if target_ms is None or group.cls.late:
        return Due(group.remaining, None)
    first_s, last_s = _arrivals_s(group, view, last_ns)
    hopeful_s = now_ns / 1e9 + lead_s(target_ms, takes_s) - target_ms / 1000
    if hopeful_s > last_s:
        return Due(group.remaining, None)
    gone = max(0.0, hopeful_s - first_s) / (last_s - first_s) if last_s > first_s else 0.0
    requests = max(1, group.remaining - int(gone * group.remaining))
    return Due(requests, (max(first_s, hopeful_s) + last_s) / 2 + target_ms / 1000)


def _arrivals_s(group: Group, view: ClassView, last_ns: int) -> tuple[float, float]:
    """Arrivals of the first and the last waiting request, seconds since the epoch.

    The head of a group that was just cut off another is not known yet: it came before the class's newest.
    """
    first_ns = group.head_arrival_ns or view.newest_arrival_ns or last_ns
    return first_ns / 1e9, max(first_ns, last_ns) / 1e9
