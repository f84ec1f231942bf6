"""Earliest deadline first with same-model grouping: list scheduling that gives a plan at once.

Groups are taken by priority and deadline; each goes to the instance on which it ends first, swaps
included, and there behind the last group of its model if that makes no later group miss its deadline,
else at the end. Cost: O(groups x (instances + longest queue)).
"""

from dataclasses import dataclass, field

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, Plan, PlannedGroup, Problem


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where a lane stands after its last group: clock and tail in mean seconds from now, models held."""

    clock_s: float
    tail_s: float
    loaded: ModelId | None
    warm: frozenset[ModelId]

    @property
    def end_s(self) -> float:
        return self.clock_s + self.tail_s


@dataclass(slots=True)
class _Lane:
    """One instance's queue while it is built."""

    instance: Instance
    kind: Kind
    last: _Moment
    groups: list[PlannedGroup] = field(default_factory=list)

    def after(self, moment: _Moment, group: PlannedGroup) -> _Moment:
        """Serve one more group; before a model change the predecessor counts with its tail."""
        clock_s, loaded, warm = moment.clock_s, moment.loaded, moment.warm
        if group.model != loaded:
            cost = self.kind.models[group.model]
            unload_s = self.kind.models[loaded].unload_s if loaded in self.kind.models else 0.0
            clock_s += moment.tail_s + unload_s
            clock_s += cost.swap_warm_s if group.model in warm else cost.swap_cold_s
            loaded, warm = group.model, warm | {group.model}
        time = group.time[self.instance.kind]
        return _Moment(clock_s + time.drain.mean, time.tail.mean, loaded, warm)

    def moments(self, groups: list[PlannedGroup]) -> list[_Moment]:
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


def _start(instance: Instance) -> _Moment:
    loaded = instance.loaded_model
    warm = frozenset(instance.warm_models) | ({loaded} if loaded else set())
    return _Moment(instance.busy.mean, 0.0, loaded, warm)


def plan_edf(problem: Problem) -> Plan:
    """Order all groups by earliest deadline first with same-model grouping.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    lanes = [
        _Lane(instance, problem.kinds[instance.kind], _start(instance))
        for instance in sorted(problem.instances, key=lambda i: i.id)
    ]
    home = {group: lane.instance.id for lane in lanes for group in lane.instance.queue}
    unplaceable: list[GroupId] = []
    for group in sorted(problem.groups, key=_urgency):
        if not _place(group, lanes, home.get(group.id), problem):
            unplaceable.append(group.id)
    return Plan(
        queues={lane.instance.id: tuple(g.id for g in lane.groups) for lane in lanes},
        unplaceable=tuple(unplaceable),
        method="edf",
    )


def _place(group: PlannedGroup, lanes: list[_Lane], home: InstanceId | None, problem: Problem) -> bool:
    best: tuple[float, int] | None = None
    for index, lane in enumerate(lanes):
        if not _runs_on(group.model, lane.instance, group, problem):
            continue
        end_s = lane.after(lane.last, group).end_s
        if home is not None and lane.instance.id != home:
            end_s += problem.move_s
        if best is None or (end_s, index) < best:
            best = (end_s, index)
    if best is None:
        return False
    lane = lanes[best[1]]
    lane.groups = _beside_its_model(lane, group, problem.now_s)
    lane.last = lane.moments(lane.groups)[-1]
    return True


def _beside_its_model(lane: _Lane, group: PlannedGroup, now_s: float) -> list[PlannedGroup]:
    """Insert behind the last group of the same model unless a deadline that held would then be missed."""
    at_end = [*lane.groups, group]
    same = [i for i, other in enumerate(lane.groups) if other.model == group.model]
    if same:
        spot = same[-1] + 1
    elif group.model == lane.instance.loaded_model:
        spot = 0
    else:
        return at_end
    if any(other.priority < group.priority for other in lane.groups[spot:]):
        return at_end
    beside = [*lane.groups[:spot], group, *lane.groups[spot:]]
    return beside if lane.missed(beside, now_s) <= lane.missed(at_end, now_s) else at_end


def _runs_on(model: ModelId, instance: Instance, group: PlannedGroup, problem: Problem) -> bool:
    return model in problem.kinds[instance.kind].models and instance.kind in group.time


def _urgency(group: PlannedGroup) -> tuple[int, float, str]:
    return (group.priority, float("inf") if group.deadline_s is None else group.deadline_s, group.id)
