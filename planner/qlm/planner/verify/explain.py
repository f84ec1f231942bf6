"""Why a group stands where it stands: what it waits for, and what other places would cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Objective, Plan, PlannedGroup, Problem
from qlm.planner.verify.placing import Places
from qlm.planner.verify.referee import GroupRow, price
from qlm.planner.verify.timeline import Served, timeline
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The group at some place, all else as it is.

    Attributes:
        row: The group there.
        change_s: What the whole plan would cost more, seconds; negative if it would be better.
        allowed: No priority is passed over.
    """

    row: GroupRow
    change_s: float
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the queue does for one group.

    Attributes:
        row: The group at its place.
        drain: How long it keeps the ones behind it waiting.
        waits_for_tail: The tail of its predecessor, for which only a model change waits.
    """

    row: GroupRow
    drain: Normal
    waits_for_tail: Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A group and its places.

    Attributes:
        group: The group.
        why_unplaceable: Why it can run nowhere; None if it can.
        busy: Until when its instance is busy with what it has, seconds from now; None if it stands nowhere.
        steps: What stands before it, in order, and itself at the end; empty if it stands nowhere.
        first: The group in front of its queue; None if it stands nowhere.
        elsewhere: Its best place on each other instance that runs it, and on all if it stands nowhere;
            cheapest first.
    """

    group: PlannedGroup
    why_unplaceable: str | None
    busy: Normal | None
    steps: tuple[Step, ...]
    first: Place | None
    elsewhere: tuple[Place, ...]


def explain(
    problem: Problem, plan: Plan, group: GroupId, *, objective: Objective = "requests"
) -> Explanation:
    """Tell why a group stands where it stands.

    Each other place is priced by serving the two queues that would change; cost: one such pricing per
    place of a queue.

    Args:
        problem: What waits, and the fleet.
        plan: A feasible answer to it (`verify` finds no violation but of priorities).
        group: The group to ask about.
        objective: How to price.

    Raises:
        InvalidValueError: The problem has no such group.
    """
    places = Places.of(problem)
    asked = places.groups.get(group)
    if asked is None:
        raise InvalidValueError("group", group, "a group of the problem")
    queues = _Queues(places, plan, objective)
    home = queues.home(group)
    return Explanation(
        group=asked,
        why_unplaceable=None if places.placeable(asked) else places.why_unplaceable(asked),
        busy=None if home is None else places.instances[home].busy,
        steps=() if home is None else tuple(queues.steps(home, until=group)),
        first=None if home is None else queues.place(asked, home, home, 0),
        elsewhere=tuple(sorted(queues.elsewhere(asked, home), key=_cheapest)),
    )


def _cheapest(place: Place) -> tuple[bool, float, InstanceId]:
    return (not place.allowed, place.change_s, place.row.instance)


class _Queues:
    """The queues of a plan, and what they cost, one by one."""

    def __init__(self, places: Places, plan: Plan, objective: Objective) -> None:
        self.groups: dict[InstanceId, list[PlannedGroup]] = {
            id: [places.groups[name] for name in plan.queues.get(id, ())] for id in places.instances
        }
        self._places = places
        self._objective = objective
        self._cost_s: dict[InstanceId, float] = {}

    def home(self, group: GroupId) -> InstanceId | None:
        """Where the plan places a group."""
        found = (id for id, queue in self.groups.items() if any(each.id == group for each in queue))
        return next(found, None)

    def steps(self, id: InstanceId, until: GroupId) -> Iterator[Step]:
        """What an instance does up to a group, and with it."""
        served = self._served(id, self.groups[id])
        for each, row in zip(served, price(self._places, served, self._objective), strict=True):
            yield Step(row=row, drain=each.time.drain, waits_for_tail=each.waits_for_tail)
            if row.group == until:
                return

    def elsewhere(self, group: PlannedGroup, home: InstanceId | None) -> Iterator[Place]:
        """The best place on each instance but its own."""
        for id, instance in self._places.instances.items():
            if id != home and self._places.runs(instance, group):
                spots = range(len(self.groups[id]) + 1)
                yield min((self.place(group, home, id, at) for at in spots), key=_cheapest)

    def place(self, group: PlannedGroup, home: InstanceId | None, to: InstanceId, at: int) -> Place:
        """Take the group from where it is, put it at a place of an instance, and price what changes."""
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
        instance = self._places.instances[id]
        return list(timeline(self._places.problem.kinds[instance.kind], instance, queue))

    def _rows(self, id: InstanceId, queue: Sequence[PlannedGroup]) -> list[GroupRow]:
        return price(self._places, self._served(id, queue), self._objective)

    def _cost(self, id: InstanceId) -> float:
        if id not in self._cost_s:
            self._cost_s[id] = self._sum(self._rows(id, self.groups[id]))
        return self._cost_s[id]

    def _sum(self, rows: Sequence[GroupRow]) -> float:
        move_s = self._places.problem.move_s
        return math.fsum(row.penalty_s + move_s * row.moved for row in rows)
