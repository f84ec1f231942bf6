"""List scheduling: groups are taken in some order, and each goes to the instance on which it ends first.

Cost: O(groups x (instances + longest queue)).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, Plan, PlannedGroup, Problem


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a lane stands after its last group: clock and tail in mean seconds from now, models held."""

    clock_s: float
    tail_s: float
    loaded: ModelId | None
    warm: frozenset[ModelId]

    @property
    def end_s(self) -> float:
        """When the last group has ended."""
        return self.clock_s + self.tail_s


@dataclass(slots=True)
class Lane:
    """One instance's queue while it is built."""

    instance: Instance
    kind: Kind
    last: Moment
    groups: list[PlannedGroup] = field(default_factory=list)

    def after(self, moment: Moment, group: PlannedGroup) -> Moment:
        """Serve one more group; before a model change the predecessor counts with its tail."""
        clock_s, loaded, warm = moment.clock_s, moment.loaded, moment.warm
        if group.model != loaded:
            cost = self.kind.models[group.model]
            unload_s = self.kind.models[loaded].unload_s if loaded in self.kind.models else 0.0
            clock_s += moment.tail_s + unload_s
            clock_s += cost.swap_warm_s if group.model in warm else cost.swap_cold_s
            loaded, warm = group.model, warm | {group.model}
        time = group.time[self.instance.kind]
        return Moment(clock_s + time.drain.mean, time.tail.mean, loaded, warm)

    def end_s(self, group: PlannedGroup) -> float:
        """When one more group would end; what `after` says, without the rest."""
        last = self.last
        time = group.time[self.instance.kind]
        if group.model == last.loaded:
            return last.clock_s + time.drain.mean + time.tail.mean
        cost = self.kind.models[group.model]
        unload_s = self.kind.models[last.loaded].unload_s if last.loaded in self.kind.models else 0.0
        swap_s = cost.swap_warm_s if group.model in last.warm else cost.swap_cold_s
        return last.clock_s + (last.tail_s + unload_s) + swap_s + time.drain.mean + time.tail.mean

    def moments(self, groups: list[PlannedGroup]) -> list[Moment]:
        """Where the lane stands after each group if it served `groups` in this order."""
        moment, moments = _start(self.instance), []
        for group in groups:
            moment = self.after(moment, group)
            moments.append(moment)
        return moments

    def missed(self, groups: list[PlannedGroup], now_s: float) -> int:
        """Requests of groups that would end late in this order."""
        return sum(
            group.requests
            for group, moment in zip(groups, self.moments(groups), strict=True)
            if group.deadline_s is not None and now_s + moment.end_s > group.deadline_s
        )


def _start(instance: Instance) -> Moment:
    loaded = instance.loaded_model
    warm = frozenset(instance.warm_models) | ({loaded} if loaded else set())
    return Moment(instance.busy.mean, 0.0, loaded, warm)


Insert = Callable[[Lane, PlannedGroup, float], list[PlannedGroup]]
"""Where a lane takes a group: its groups in order with the new one, given the lane, the group and now_s."""


def at_end(lane: Lane, group: PlannedGroup, now_s: float) -> list[PlannedGroup]:
    """Behind all that is there."""
    return [*lane.groups, group]


def list_schedule(
    problem: Problem, order: Iterable[PlannedGroup], insert: Insert = at_end, *, method: str
) -> Plan:
    """Place groups one after the other.

    Args:
        problem: What waits, and the fleet.
        order: Its groups, in the order in which they choose.
        insert: Where the chosen lane takes a group.
        method: Name in the plan.

    Returns:
        A plan with each placeable group on exactly one queue.
    """
    lanes = [
        Lane(instance, problem.kinds[instance.kind], _start(instance))
        for instance in sorted(problem.instances, key=lambda i: i.id)
    ]
    home = {group: lane.instance.id for lane in lanes for group in lane.instance.queue}
    unplaceable: list[GroupId] = []
    for group in order:
        if not _place(group, lanes, home.get(group.id), problem, insert):
            unplaceable.append(group.id)
    return Plan(
        queues={lane.instance.id: tuple(g.id for g in lane.groups) for lane in lanes},
        unplaceable=tuple(unplaceable),
        method=method,
    )


def _place(
    group: PlannedGroup, lanes: list[Lane], home: InstanceId | None, problem: Problem, insert: Insert
) -> bool:
    best: tuple[float, int] | None = None
    for index, lane in enumerate(lanes):
        if not _runs_on(group.model, lane.instance, group, problem):
            continue
        end_s = lane.end_s(group)
        if home is not None and lane.instance.id != home:
            end_s += problem.move_s
        if best is None or (end_s, index) < best:
            best = (end_s, index)
    if best is None:
        return False
    lane = lanes[best[1]]
    groups = insert(lane, group, problem.now_s)
    appended = groups[-1] is group
    lane.groups = groups
    lane.last = lane.after(lane.last, group) if appended else lane.moments(groups)[-1]
    return True


def _runs_on(model: ModelId, instance: Instance, group: PlannedGroup, problem: Problem) -> bool:
    return model in problem.kinds[instance.kind].models and instance.kind in group.time


def urgency(group: PlannedGroup) -> tuple[int, float, str]:
    """Order by priority, then deadline (none is last), then identity."""
    return (group.priority, float("inf") if group.deadline_s is None else group.deadline_s, group.id)
