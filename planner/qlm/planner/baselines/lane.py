"""One instance's queue while it is built, in mean times."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, PlannedGroup, Problem


class Moment(NamedTuple):
    """Where a lane stands after a group: clock and tail in mean seconds from now, models held."""

    clock_s: float
    tail_s: float
    loaded: ModelId | None
    warm: frozenset[ModelId]

    @property
    def end_s(self) -> float:
        """When the group has ended."""
        return self.clock_s + self.tail_s


@dataclass(slots=True)
class Lane:
    """The queue of one instance.

    Attributes:
        instance: Whose queue it is.
        kind: The instance's kind.
        start: Where it stands before its first group.
        groups: What stands in it, first served first.
        moments: Where it stands after each of them.
    """

    instance: Instance
    kind: Kind
    start: Moment
    groups: list[PlannedGroup] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    @classmethod
    def of(cls, instance: Instance, kind: Kind) -> "Lane":
        """Begin where an instance stands now."""
        loaded = instance.loaded_model
        warm = frozenset(instance.warm_models) | ({loaded} if loaded else set())
        return cls(instance, kind, Moment(instance.busy.mean, 0.0, loaded, warm))

    @property
    def last(self) -> Moment:
        """Where it stands after all that is in it."""
        return self.moments[-1] if self.moments else self.start

    def before(self, spot: int) -> Moment:
        """Where it stands before the group at `spot`."""
        return self.moments[spot - 1] if spot else self.start

    def leave_s(self, moment: Moment) -> float:
        """When another model could begin to load: the predecessor counts with its tail."""
        cost = self.kind.models.get(moment.loaded) if moment.loaded is not None else None
        return moment.clock_s + (moment.tail_s + (cost.unload_s if cost else 0.0))

    def ready_s(self, model: ModelId, moment: Moment) -> float:
        """When a group of a model could begin."""
        if model == moment.loaded:
            return moment.clock_s
        cost = self.kind.models[model]
        swap_s = cost.swap_warm_s if model in moment.warm else cost.swap_cold_s
        return self.leave_s(moment) + swap_s

    def after(self, moment: Moment, group: PlannedGroup) -> Moment:
        """Serve one more group."""
        model, warm = group.model, moment.warm
        time = group.time[self.instance.kind]
        clock_s = self.ready_s(model, moment) + time.drain.mean
        return Moment(clock_s, time.tail.mean, model, warm if model in warm else warm | {model})

    def insert(self, spot: int, group: PlannedGroup) -> None:
        """Take a group in at a place; what stands behind it moves back."""
        self.groups.insert(spot, group)
        del self.moments[spot:]
        moment = self.last
        for each in self.groups[spot:]:
            moment = self.after(moment, each)
            self.moments.append(moment)


def lanes_of(problem: Problem) -> list[Lane]:
    """Empty lanes of the fleet, by instance id."""
    return [
        Lane.of(instance, problem.kinds[instance.kind])
        for instance in sorted(problem.instances, key=lambda i: i.id)
    ]


def is_late(group: PlannedGroup, moment: Moment, now_s: float) -> bool:
    """Tell whether a group after which a lane stands at `moment` has missed its deadline."""
    return group.deadline_s is not None and now_s + moment.end_s > group.deadline_s


def queues_of(lanes: Iterable[Lane]) -> dict[InstanceId, tuple[GroupId, ...]]:
    """Ids of the groups in each lane."""
    return {lane.instance.id: tuple(group.id for group in lane.groups) for lane in lanes}
