"""Where one more group would start in a planned queue."""

from collections.abc import Callable
from dataclasses import dataclass

from qlm.domain.ids import ModelId
from qlm.planner.problem import Instance, Kind, Plan, PlannedGroup
from qlm.planner.verify.placing import Places
from qlm.planner.verify.timeline import Served, timeline
from qlm.rct_estimator.normal import NOTHING, Normal


@dataclass(frozen=True, slots=True)
class Queue:
    """What a plan has an instance do.

    Attributes:
        instance: The instance.
        kind: Its kind.
        served: Its groups at their places.
    """

    instance: Instance
    kind: Kind
    served: tuple[Served, ...]

    def start_behind(self, ahead: int, model: ModelId) -> Normal:
        """When a group of a model would start behind the first `ahead` groups, swaps included.

        Args:
            ahead: 0 for the front.
            model: One that the kind runs.
        """
        last = self.served[ahead - 1] if ahead else None
        loaded = last.group.model if last else self.instance.loaded_model
        now = last.start + last.time.drain if last else self.instance.busy
        if model == loaded:
            return now
        old, cost = self.kind.models.get(loaded) if loaded is not None else None, self.kind.models[model]
        known = {self.instance.loaded_model, *self.instance.warm_models}
        warm = model in known or any(each.group.model == model for each in self.served[:ahead])
        swap_s = (cost.swap_warm_s if warm else cost.swap_cold_s) + (old.unload_s if old else 0.0)
        return now + (last.time.tail if last else NOTHING) + Normal(swap_s)

    def alone(self, group: PlannedGroup) -> Served:
        """Serve a group as the first of the queue."""
        (served,) = timeline(self.kind, self.instance, [group])
        return served

    def start_behind_some(self, model: ModelId, ahead: Callable[[PlannedGroup], bool]) -> Normal:
        """When a group of a model would start if only some of the groups stood before it.

        Args:
            model: One that the kind runs.
            ahead: Tells which.
        """
        some = [each.group for each in self.served if ahead(each.group)]
        if len(some) < len(self.served):
            queue = Queue(self.instance, self.kind, tuple(timeline(self.kind, self.instance, some)))
            return queue.start_behind(len(some), model)
        return self.start_behind(len(some), model)

    def behind_urgent(self, priority: int, deadline_s: float | None) -> int:
        """Groups that a new one would stand behind: up to the last that is at least as urgent.

        Args:
            priority: Of the new group; a lower number goes first.
            deadline_s: On the clock of the problem; None is less urgent than any.
        """
        mine = urgency(priority, deadline_s)
        count = len(self.served)
        while count and urgency_of(self.served[count - 1].group) > mine:
            count -= 1
        return count


def queues_of(places: Places, plan: Plan) -> list[Queue]:
    """Serve the queues of a feasible plan, by instance id."""
    queues = []
    for id, instance in places.instances.items():
        kind = places.problem.kinds[instance.kind]
        groups = [places.groups[name] for name in plan.queues.get(id, ())]
        queues.append(Queue(instance, kind, tuple(timeline(kind, instance, groups))))
    return queues


def urgency(priority: int, deadline_s: float | None) -> tuple[int, float]:
    """Order by priority, then deadline; none is last."""
    return priority, float("inf") if deadline_s is None else deadline_s


def urgency_of(group: PlannedGroup) -> tuple[int, float]:
    """See `urgency`."""
    return urgency(group.priority, group.deadline_s)
