"""Where a waiting request stands in the plan, and what is expected of it there."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qlm.domain.ids import GroupId
from qlm.planner.kept_plan import KeptPlan
from qlm.planner.problem import Objective, PlannedGroup
from qlm.planner.verify.explain import Explanation, Place, explain
from qlm.planner.verify.placing import Places
from qlm.planner.verify.referee import GroupRow, verify
from qlm.planner.verify.turn import Turn, turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The request if its group were at another place, all else as it is."""

    place: Place
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """A waiting request whose group has a part in the plan.

    Attributes:
        nth: Which request of its group it is for the plan, from 1; None if it came after the plan was made.
        deadline_s: Its own, from the moment of the plan; None if it has none.
        group: Its group as the plan has it, and why it stands where it stands.
        turn: What is expected of the request; None if it came after the plan, or its group has no place.
        first: With its group at the front of its queue; None if it is there, or where `turn` is.
        elsewhere: With its group on other instances, answered soonest first; only those that are sooner.
        sooner: Groups of its class with later arrivals that start before its own.
        later: Groups of its class with earlier arrivals that start after its own.
    """

    nth: int | None
    deadline_s: float | None
    group: Explanation
    turn: Turn | None = None
    first: Elsewhere | None = None
    elsewhere: tuple[Elsewhere, ...] = ()
    sooner: tuple[GroupRow, ...] = ()
    later: tuple[GroupRow, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Write it as dicts, lists, numbers and strings."""
        return dataclasses.asdict(self)


def find_place(
    asked: Mapping[str, Any],
    kept: KeptPlan | None,
    classmates: Sequence[Mapping[str, Any]],
    objective: Objective,
) -> PlannedRequest | None:
    """Look a request up in the plan.

    Args:
        asked: What the gateway tells of the request.
        kept: The latest plan, a feasible one, if there is any.
        classmates: What the gateway tells of the groups of its class, in order of arrival.
        objective: How to price.

    Returns:
        None if it does not wait, if no group covers it, or if the plan does not have its group (yet).
    """
    waits = asked.get("waits")
    if kept is None or not waits:
        return None
    places = Places.of(kept.problem)
    group = places.groups.get(waits["group"])
    if group is None:
        return None
    told = explain(kept.problem, kept.plan, group.id, objective=objective)
    at_s = kept.at_ms / 1000
    deadline_s = None if asked["deadline_s"] is None else asked["deadline_s"] - at_s
    nth = _nth(asked, group, kept.at_ms)
    if nth is None or not told.steps:
        return PlannedRequest(nth=nth, deadline_s=deadline_s, group=told)
    own = told.steps[-1].row
    mine = turn(places, own, nth, deadline_s)

    def there(place: Place) -> Elsewhere:
        return Elsewhere(place=place, turn=turn(places, place.row, nth, deadline_s))

    options = sorted(map(there, told.elsewhere), key=lambda each: each.turn.answered.mean)
    sooner, later = _out_of_order(kept, own, classmates)
    return PlannedRequest(
        nth=nth,
        deadline_s=deadline_s,
        group=told,
        turn=mine,
        first=there(told.first) if told.first is not None and own.place > 0 else None,
        elsewhere=tuple(each for each in options if each.turn.answered.mean < mine.answered.mean),
        sooner=sooner,
        later=later,
    )


def _nth(asked: Mapping[str, Any], group: PlannedGroup, at_ms: int) -> int | None:
    """Which request of its group it is for the plan: those that have left the group since go before it.

    How many have left follows from how many there were and are; while requests join an open group, too, it
    comes out too small by as many, until the next plan.
    """
    waits = asked["waits"]
    if int(asked["arrival_s"] * 1000) > at_ms:
        return None
    nth: int = waits["group_position"] + max(0, group.requests - waits["group_requests"])
    return nth if nth <= group.requests else None


def _out_of_order(
    kept: KeptPlan, own: GroupRow, classmates: Sequence[Mapping[str, Any]]
) -> tuple[tuple[GroupRow, ...], tuple[GroupRow, ...]]:
    """Groups of the class that start not in order of arrival: whoever starts takes the oldest requests."""
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
