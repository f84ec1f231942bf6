"""Explanation of a group's place: the groups before it, and the cost of other places."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Objective, Plan, PlannedGroup, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import GroupRow, price
from qlm.planner.verify.timeline import Served, timeline
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A group at another place, all else unchanged.

    Attributes:
        row: The group there.
        change_s: Change of the plan's penalty, seconds; negative if the place is better.
        allowed: The place keeps the order of priorities.
    """

    row: GroupRow
    change_s: float
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One group of the queue up to the explained one.

    Attributes:
        row: The group at its place.
        service: Its service time.
        leaves: Time when its last request leaves the queue.
        waits_for_tail: Tail of its predecessor, for which only a model change waits.
    """

    row: GroupRow
    service: Normal
    leaves: Normal
    waits_for_tail: Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A group, its predecessors and its other places.

    Attributes:
        why_unplaceable: Reason why it can run nowhere; None if it can run.
        busy: Time until the present batch of its instance has ended, seconds from now; None without a place.
        steps: Its predecessors in order, and itself at the end; empty without a place.
        first: The group at the front of its queue; None without a place.
        elsewhere: Its best place on each other instance that runs it, or on all without a place; cheapest
            first.
    """

    group: PlannedGroup
    why_unplaceable: str | None
    busy: Normal | None
    steps: tuple[Step, ...]
    first: Place | None
    elsewhere: tuple[Place, ...]


def json_fields(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build the JSON object of a part of an explanation; a `dict_factory` for `dataclasses.asdict`.

    The published JSON, like the file format of problems, calls a service time `drain`.
    """
    return {"drain" if name == "service" else name: value for name, value in pairs}


def explain(
    problem: Problem, plan: Plan, group: GroupId, *, objective: Objective = "requests"
) -> Explanation:
    """Explain the place of a group.

    Each other place is priced by serving the two queues that would change: one pricing per place of a queue.

    Args:
        problem: The problem.
        plan: A feasible plan of it, except for violated priorities.
        group: Id of the group.
        objective: Penalty to compute.

    Raises:
        InvalidValueError: The problem has no such group.
    """
    index = ProblemIndex.of(problem)
    found = index.groups.get(group)
    if found is None:
        raise InvalidValueError("group", group, "a group of the problem")
    queues = _Queues(index, plan, objective)
    home = queues.home(group)
    return Explanation(
        group=found,
        why_unplaceable=None if index.placeable(found) else index.why_unplaceable(found),
        busy=None if home is None else index.instances[home].busy,
        steps=() if home is None else tuple(queues.steps(home, until=group)),
        first=None if home is None else queues.place(found, home, home, 0),
        elsewhere=tuple(sorted(queues.elsewhere(found, home), key=_cheapest)),
    )


def _cheapest(place: Place) -> tuple[bool, float, InstanceId]:
    return (not place.allowed, place.change_s, place.row.instance)


class _Queues:
    """The queues of a plan, and their costs."""

    def __init__(self, index: ProblemIndex, plan: Plan, objective: Objective) -> None:
        self.groups: dict[InstanceId, list[PlannedGroup]] = {
            id: [index.groups[name] for name in plan.queues.get(id, ())] for id in index.instances
        }
        self._index = index
        self._objective = objective
        self._cost_s: dict[InstanceId, float] = {}

    def home(self, group: GroupId) -> InstanceId | None:
        """Return the instance of a group in the plan."""
        found = (id for id, queue in self.groups.items() if any(each.id == group for each in queue))
        return next(found, None)

    def steps(self, id: InstanceId, until: GroupId) -> Iterator[Step]:
        """Yield the groups of an instance up to a given one, included."""
        served = self._served(id, self.groups[id])
        for each, row in zip(served, price(self._index, served, self._objective), strict=True):
            yield Step(
                row=row,
                service=each.time.whole_service,
                leaves=each.leaves(),
                waits_for_tail=each.waits_for_tail,
            )
            if row.group == until:
                return

    def elsewhere(self, group: PlannedGroup, home: InstanceId | None) -> Iterator[Place]:
        """Yield the best place on each instance but its own."""
        for id, instance in self._index.instances.items():
            if id != home and self._index.runs(instance, group):
                spots = range(len(self.groups[id]) + 1)
                yield min((self.place(group, home, id, at) for at in spots), key=_cheapest)

    def place(self, group: PlannedGroup, home: InstanceId | None, to: InstanceId, at: int) -> Place:
        """Move the group to a place of an instance, and price the changed queues."""
        rest = [each for each in self.groups[to] if each is not group]
        queue = [*rest[:at], group, *rest[at:]]
        rows = self._rows(to, queue)
        change_s = self._sum(rows) - self._cost(to)
        if home is not None and home != to:
            left = [each for each in self.groups[home] if each is not group]
            change_s += self._sum(self._rows(home, left)) - self._cost(home)
        allowed = all(each.priority <= group.priority for each in rest[:at]) and all(
            each.priority >= group.priority for each in rest[at:]
        )
        return Place(row=rows[at], change_s=change_s, allowed=allowed)

    def _served(self, id: InstanceId, queue: Sequence[PlannedGroup]) -> list[Served]:
        instance = self._index.instances[id]
        return list(timeline(self._index.problem.kinds[instance.kind], instance, queue))

    def _rows(self, id: InstanceId, queue: Sequence[PlannedGroup]) -> list[GroupRow]:
        return price(self._index, self._served(id, queue), self._objective)

    def _cost(self, id: InstanceId) -> float:
        if id not in self._cost_s:
            self._cost_s[id] = self._sum(self._rows(id, self.groups[id]))
        return self._cost_s[id]

    def _sum(self, rows: Sequence[GroupRow]) -> float:
        move_s = self._index.problem.move_s
        return math.fsum(row.penalty_s + move_s * row.moved for row in rows)
