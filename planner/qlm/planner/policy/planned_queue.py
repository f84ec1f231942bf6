"""Start of one more group in a planned queue."""

from collections.abc import Callable
from dataclasses import dataclass

from qlm.domain.ids import ModelId
from qlm.domain.urgency import urgency
from qlm.planner.problem import Instance, Kind, Plan, PlannedGroup
from qlm.planner.swapping.swaps import Swaps
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, timeline
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """The queue of an instance in a plan, with the times of its groups."""

    instance: Instance
    kind: Kind
    served: tuple[Served, ...]

    def start_after(self, predecessors: int, model: ModelId) -> Normal:
        """Return the start of a group of a model behind the first `predecessors` groups, swaps included."""
        last = self.served[predecessors - 1] if predecessors else None
        loaded = last.group.model if last else self.instance.loaded_model
        if model == loaded:
            return last.leaves() if last else self.instance.busy
        swaps = Swaps(self.kind)
        asleep = last.asleep if last else swaps.at_first(self.instance)
        leaves = last.completion() if last else self.instance.busy + Normal(self.instance.leave_s)
        return leaves + Normal(swaps.takes_s(asleep, loaded, model))

    def alone(self, group: PlannedGroup) -> Served:
        """Serve a group as the first of the queue."""
        (served,) = timeline(self.kind, self.instance, [group])
        return served

    def start_after_matching(self, model: ModelId, precedes: Callable[[PlannedGroup], bool]) -> Normal:
        """Return the start of a group of a model if only matching groups preceded it."""
        some = [each.group for each in self.served if precedes(each.group)]
        if len(some) < len(self.served):
            queue = PlannedQueue(self.instance, self.kind, tuple(timeline(self.kind, self.instance, some)))
            return queue.start_after(len(some), model)
        return self.start_after(len(some), model)

    def count_urgent(self, priority: int, deadline_s: float | None) -> int:
        """Return the number of groups up to the last one that is at least as urgent.

        Args:
            priority: Priority of a new group; lower goes first.
            deadline_s: Its deadline, on the clock of the problem; None is less urgent than any.
        """
        mine = urgency(priority, deadline_s)
        count = len(self.served)
        while count and urgency_of(self.served[count - 1].group) > mine:
            count -= 1
        return count


def planned_queues(index: ProblemIndex, plan: Plan) -> list[PlannedQueue]:
    """Serve the queues of a feasible plan, by instance id."""
    queues = []
    for id, instance in index.instances.items():
        kind = index.problem.kinds[instance.kind]
        groups = [index.groups[name] for name in plan.queues.get(id, ())]
        queues.append(PlannedQueue(instance, kind, tuple(timeline(kind, instance, groups))))
    return queues


def urgency_of(group: PlannedGroup) -> tuple[int, float]:
    """Return the sort key of a group of the problem."""
    return urgency(group.priority, group.deadline_s)
