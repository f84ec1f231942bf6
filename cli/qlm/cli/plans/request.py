"""Position of a waiting request in the plan, with its expected times."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qlm.domain.ids import GroupId
from qlm.planner.problem import Objective, PlannedGroup
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.explain import Explanation, Place, explain, json_fields
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import GroupRow, verify
from qlm.planner.verify.request_times import RequestTimes, request_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The request with its group at another position, all else equal."""

    place: Place
    turn: RequestTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A waiting request whose group is in the plan.

    Attributes:
        nth: Number of the request in its group, from 1; None if it arrived after the plan.
        deadline_s: Its deadline, from the time of the plan; None if it has none.
        group: Explanation of its group's position.
        turn: Expected times of the request; None if it arrived after the plan, or its group has no position.
        first: The same with its group at the front of its queue; None if it is there, or without `turn`.
        elsewhere: The same with its group on other instances, earliest answer first; only earlier ones.
        sooner: Groups of its class with later arrivals that start before its own.
        later: Groups of its class with earlier arrivals that start after its own.
    """

    nth: int | None
    deadline_s: float | None
    group: Explanation
    turn: RequestTimes | None = None
    first: Alternative | None = None
    elsewhere: tuple[Alternative, ...] = ()
    sooner: tuple[GroupRow, ...] = ()
    later: tuple[GroupRow, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return it as dicts, lists, numbers and strings."""
        return dataclasses.asdict(self, dict_factory=json_fields)


def find_place(
    request: Mapping[str, Any],
    kept: PublishedPlan | None,
    classmates: Sequence[Mapping[str, Any]],
    objective: Objective,
) -> PlannedRequest | None:
    """Look a request up in the plan.

    Args:
        request: State of the request, as returned by the gateway.
        kept: The latest plan, a feasible one, if there is any.
        classmates: Groups of its class, as returned by the gateway, in order of arrival.
        objective: Objective of the costs.

    Returns:
        None if it does not wait, if no group covers it, or if the plan does not have its group (yet).
    """
    waits = request.get("waits")
    if kept is None or not waits:
        return None
    places = ProblemIndex.of(kept.problem)
    group = places.groups.get(waits["group"])
    if group is None:
        return None
    explained = explain(kept.problem, kept.plan, group.id, objective=objective)
    at_s = kept.at_ms / 1000
    deadline_s = None if request["deadline_s"] is None else request["deadline_s"] - at_s
    nth = _nth(request, group, kept.at_ms)
    if nth is None or not explained.steps:
        return PlannedRequest(nth=nth, deadline_s=deadline_s, group=explained)
    own = explained.steps[-1].row
    mine = request_times(places, own, nth, deadline_s)

    def there(place: Place) -> Alternative:
        return Alternative(place=place, turn=request_times(places, place.row, nth, deadline_s))

    options = sorted(map(there, explained.elsewhere), key=lambda each: each.turn.answered.mean)
    sooner, later = _out_of_order(kept, own, classmates)
    return PlannedRequest(
        nth=nth,
        deadline_s=deadline_s,
        group=explained,
        turn=mine,
        first=there(explained.first) if explained.first is not None and own.place > 0 else None,
        elsewhere=tuple(each for each in options if each.turn.answered.mean < mine.answered.mean),
        sooner=sooner,
        later=later,
    )


def _nth(request: Mapping[str, Any], group: PlannedGroup, at_ms: int) -> int | None:
    """Return the request's number in its group at the time of the plan; None if it arrived later."""
    # Requests that have left the group since count as predecessors; their number is the difference of group
    # sizes. While requests also join an open group, it is too small by as many, until the next plan.
    waits = request["waits"]
    if int(request["arrival_s"] * 1000) > at_ms:
        return None
    nth: int = waits["group_position"] + max(0, group.requests - waits["group_requests"])
    return nth if nth <= group.requests else None


def _out_of_order(
    kept: PublishedPlan, own: GroupRow, classmates: Sequence[Mapping[str, Any]]
) -> tuple[tuple[GroupRow, ...], tuple[GroupRow, ...]]:
    """Return groups of the class that start out of order of arrival; each start takes the oldest requests."""
    order = [GroupId(each["id"]) for each in classmates]
    if own.group not in order:
        return (), ()
    at = order.index(own.group)
    older, newer = set(order[:at]), set(order[at + 1 :])
    rows = [row for row in verify(kept.problem, kept.plan).rows if row.group in older | newer]
    rows.sort(key=lambda row: row.start.mean)
    starts_s = own.start.mean
    return (
        tuple(row for row in rows if row.group in newer and row.start.mean < starts_s),
        tuple(row for row in rows if row.group in older and row.start.mean > starts_s),
    )
