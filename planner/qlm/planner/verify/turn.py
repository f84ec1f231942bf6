"""When one request of a group has its turn, and when it is answered."""

from dataclasses import dataclass

from qlm.domain.errors import InvalidValueError
from qlm.planner.verify.closed_form import p_on_time
from qlm.planner.verify.placing import Places
from qlm.planner.verify.referee import GroupRow
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is expected of one request.

    Attributes:
        starts: When it leaves the queue, seconds from the moment of the plan.
        answered: When what its objective is about has come, seconds from that moment.
        p_met: Probability that this is in time; None without a deadline.
    """

    starts: Normal
    answered: Normal
    p_met: float | None


def turn(places: Places, row: GroupRow, nth: int, deadline_s: float | None) -> Turn:
    """Tell what is expected of the n-th request of a group at its place: C_r = S + (r/n) drain + tail.

    Args:
        places: The problem.
        row: The group at its place.
        nth: Which of its requests, from 1.
        deadline_s: Its own, from the moment of the plan; None if it has none. That of its group is the
            earliest of all its requests.

    Raises:
        InvalidValueError: The group has no such request.
    """
    if not 1 <= nth <= row.requests:
        raise InvalidValueError("nth", nth, f"a request of the group, 1 to {row.requests}")
    time = places.groups[row.group].time[places.instances[row.instance].kind]
    starts = row.start + time.drain.scaled(nth / row.requests)
    answered = starts + time.tail
    return Turn(
        starts=starts,
        answered=answered,
        p_met=None if deadline_s is None else p_on_time(answered, deadline_s),
    )
