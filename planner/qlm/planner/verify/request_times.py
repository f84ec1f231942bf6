"""Expected times of one request of a group."""

from dataclasses import dataclass

from qlm.domain.errors import InvalidValueError
from qlm.planner.verify.closed_form import p_on_time
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import GroupRow
from qlm.planner.verify.timeline import Served
from qlm.rct_estimator.normal import NOTHING, Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """Expected times of one request, in seconds since the plan was made.

    Attributes:
        starts: Time when it leaves the queue.
        answered: Time when it reaches the event of its objective, completion or first token.
        p_met: Probability that this is in time; None without a deadline.
    """

    starts: Normal
    answered: Normal
    p_met: float | None


def request_times(index: ProblemIndex, row: GroupRow, nth: int, deadline_s: float | None) -> RequestTimes:
    """Return the expected times of the n-th request of a group at its place: C_r = S + (r/n) service + tail.

    Args:
        index: The problem.
        row: The group at its place.
        nth: Number of the request in its group, from 1.
        deadline_s: Deadline of the request, since the plan was made; None if it has none. The deadline of its
            group is the earliest of its requests.

    Raises:
        InvalidValueError: The group has no such request.
    """
    if not 1 <= nth <= row.requests:
        raise InvalidValueError("nth", nth, f"a request of the group, 1 to {row.requests}")
    served = Served(
        instance=index.instances[row.instance],
        group=index.groups[row.group],
        place=row.place,
        swap=row.swap,
        swap_s=row.swap_s,
        waits_for_tail=NOTHING,
        start=row.start,
        class_sd_s=row.class_sd_s,
        speed_sd_s=row.speed_sd_s,
    )
    share = nth / row.requests
    answered = served.completion(share)
    return RequestTimes(
        starts=served.leaves(share),
        answered=answered,
        p_met=None if deadline_s is None else p_on_time(answered, deadline_s),
    )
