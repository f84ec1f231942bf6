"""The sample-average objective of any plan, computed plainly by walking its queues."""

from collections.abc import Iterator

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.arrays import Floats
from qlm.planner.exact.scenarios import Scenarios
from qlm.planner.limits import ON_TIME_S
from qlm.planner.problem import Instance, Kind, Objective, Plan, PlannedGroup, Problem
from qlm.planner.swapping.swaps import Swaps


def sample_average(
    problem: Problem, plan: Plan, scenarios: Scenarios, *, objective: Objective = "requests"
) -> float:
    """Return the mean penalty of a plan over scenarios, in seconds (equation 13).

    Args:
        problem: The problem.
        plan: Groups that are on no queue add nothing.
        scenarios: Result of `draw_scenarios` on the same problem.
        objective: Penalty to compute.

    Raises:
        InvalidValueError: The plan names an instance or a group that the problem lacks, or puts a group
            where it does not run.
    """
    home = {group: i.id for i in problem.instances for group in i.queue}
    allowed = {group.id: group.misses_allowed for group in problem.groups}
    total = 0.0
    for instance, group, late_s in _walk(problem, plan, scenarios):
        total += _penalty(late_s, problem.miss_weight_s, objective)
        if objective == "requests" and late_s.size:
            missed = float(np.count_nonzero(late_s > ON_TIME_S, axis=1).mean())
            total += problem.promise_s * max(0.0, missed - allowed[group])
        total += problem.move_s if home.get(group, instance) != instance else 0.0
    return total


def chances(problem: Problem, plan: Plan, scenarios: Scenarios) -> dict[GroupId, float]:
    """Return for each group the probability that its last request is on time (left side of equation 12).

    It is the share of scenarios, and 1 without a deadline. Groups on no queue are left out.
    """
    return {
        group: float(np.mean(late_s[:, -1] <= ON_TIME_S)) if late_s.size else 1.0
        for _, group, late_s in _walk(problem, plan, scenarios)
    }


def _penalty(late_s: Floats, miss_weight_s: float, objective: Objective) -> float:
    if not late_s.size:
        return 0.0
    if objective == "paper":
        return float(late_s[:, -1].mean())
    missed = late_s > ON_TIME_S
    return float(np.where(missed, late_s + miss_weight_s, 0.0).sum(axis=1).mean())


def _walk(problem: Problem, plan: Plan, scenarios: Scenarios) -> Iterator[tuple[InstanceId, GroupId, Floats]]:
    """Yield the lateness (scenarios, requests) of each placed group; empty without a deadline."""
    instances = {instance.id: instance for instance in problem.instances}
    groups = {group.id: group for group in problem.groups}
    for id, queue in plan.queues.items():
        if id not in instances:
            raise InvalidValueError("plan.queues", id, "an instance of the problem")
        for group in queue:
            if group not in groups:
                raise InvalidValueError(f"plan.queues[{id}]", group, "a group of the problem")
        instance = instances[id]
        lane = _Lane(instance, problem.kinds[instance.kind], scenarios)
        for group in queue:
            yield id, group, lane.serve(groups[group], problem.now_s)


class _Lane:
    """One instance while its queue is served, in all scenarios at once."""

    def __init__(self, instance: Instance, kind: Kind, scenarios: Scenarios) -> None:
        self._instance, self._kind, self._scenarios = instance, kind, scenarios
        self._clock_s = instance.busy.mean + np.sqrt(instance.busy.var) * scenarios.busy
        self._tail_s = np.full(scenarios.count, instance.leave_s)
        self._loaded = instance.loaded_model
        self._swaps = Swaps(kind)
        self._asleep = self._swaps.at_first(instance)
        self._served: dict[tuple[GroupId, ...], int] = {}

    def serve(self, group: PlannedGroup, now_s: float) -> Floats:
        """Serve one more group; equation 10 with swaps that delay the group that needs them."""
        if group.model not in self._kind.models or self._instance.kind not in group.time:
            raise InvalidValueError(f"plan.queues[{self._instance.id}]", group.id, "a group that runs here")
        if group.model != self._loaded:
            self._clock_s = self._clock_s + self._tail_s + self._swap_s(group.model)
        service_s, self._tail_s = self._times(group)
        late_s = np.empty((self._scenarios.count, 0))
        if group.deadline_s is not None:
            shares = np.arange(1, group.requests + 1) / group.requests
            ends_s = self._clock_s[:, None] + shares * service_s[:, None] + self._tail_s[:, None]
            late_s = ends_s - (group.deadline_s - now_s)
        self._clock_s = self._clock_s + service_s
        return late_s

    def _swap_s(self, model: ModelId) -> float:
        swap_s = self._swaps.takes_s(self._asleep, self._loaded, model)
        self._asleep = self._swaps.after(self._asleep, self._loaded, model)
        self._loaded = model
        return swap_s

    def _times(self, group: PlannedGroup) -> tuple[Floats, Floats]:
        """Sampled service and tail, by the group's rank among those alike in time that this queue served."""
        alike = self._scenarios.alike[group.id]
        rank = self._served.get(alike, 0)
        self._served[alike] = rank + 1
        scenarios, drawn, time = self._scenarios, alike[rank], group.time[self._instance.kind]
        own_var, shared = time.service.var, time.speed_sd_s * scenarios.speed
        if group.cls is None:
            own_var += time.class_sd_s**2
        else:
            shared = shared + time.class_sd_s * scenarios.classes[group.cls]
        tail_shared = time.tail_speed_sd_s * scenarios.speed
        return (
            time.service.mean + np.sqrt(own_var) * scenarios.service[drawn] + shared,
            time.tail.mean + np.sqrt(time.tail.var) * scenarios.tail[drawn] + tail_shared,
        )
