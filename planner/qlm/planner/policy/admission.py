"""Forecast of a new request of each class under the present plan.

A new request starts behind all that is at least as urgent: behind the last such group of a queue, and what
the plan put before that. Less urgent groups yield to it. So the best instance gives its earliest
completion, and it is later only if more work that is as urgent comes before it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.arrays import Floats
from qlm.planner.policy.planned_queue import PlannedQueue, planned_queues
from qlm.planner.problem import GroupTime, Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionClass:
    """Requests that are treated alike.

    Attributes:
        model: Model that serves them.
        target_s: Time to their deadline on arrival, seconds; None if they have none.
        priority: Lower goes first.
        time: Service time and tail of one request by kind; None for the mean of what waits for the model.
    """

    model: ModelId
    target_s: float | None
    priority: int = 0
    time: Mapping[str, GroupTime] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Forecast of a new request of a class.

    Attributes:
        instance: Instance that would complete it first, by mean; None if none runs it, or its times are
            unknown.
        leaves: Time until it leaves the queue, completion less tail, seconds; None without an instance.
        completion: Time until its completion, seconds; None without an instance.
        p_met: Probability to meet the target; 1 without a target, 0 without an instance.
    """

    cls: AdmissionClass
    instance: InstanceId | None
    leaves: Normal | None
    completion: Normal | None
    p_met: float


def admission(problem: Problem, plan: Plan, classes: Iterable[AdmissionClass]) -> tuple[Admission, ...]:
    """Forecast the earliest completion of a new request of each class under the present plan.

    Args:
        problem: The problem.
        plan: A feasible plan of it.
        classes: Classes to forecast; the cost is O(classes x instances x queue).

    Returns:
        One answer per class, in their order; of equal instances the one with the first id.
    """
    queues = planned_queues(ProblemIndex.of(problem), plan)
    classes = tuple(classes)
    means = _request_times(problem, {each.model for each in classes if each.time is None})
    return tuple(_expected(queues, cls, problem.now_s, means.get(cls.model, {})) for cls in classes)


def _expected(
    queues: Iterable[PlannedQueue], cls: AdmissionClass, now_s: float, mean: Mapping[str, GroupTime]
) -> Admission:
    times = mean if cls.time is None else cls.time
    deadline_s = None if cls.target_s is None else now_s + cls.target_s
    best: tuple[InstanceId, Normal, Normal] | None = None
    for queue in queues:
        time = times.get(queue.instance.kind)
        if time is None or cls.model not in queue.kind.models:
            continue
        predecessors = queue.count_urgent(cls.priority, deadline_s)
        leaves = queue.start_after(predecessors, cls.model) + time.whole_service
        if best is None or leaves.mean + time.tail.mean < best[2].mean:
            best = (queue.instance.id, leaves, leaves + time.whole_tail)
    if best is None:
        return Admission(cls=cls, instance=None, leaves=None, completion=None, p_met=0.0)
    instance, leaves, completion = best
    p_met = 1.0 if cls.target_s is None else completion.at_most(cls.target_s)
    return Admission(cls=cls, instance=instance, leaves=leaves, completion=completion, p_met=p_met)


def _request_times(problem: Problem, models: Collection[ModelId]) -> dict[ModelId, dict[str, GroupTime]]:
    """Return the times of one request by model and kind: means over the waiting requests."""
    sums: defaultdict[tuple[ModelId, str], Floats] = defaultdict(lambda: np.zeros(5))
    for group in sorted((each for each in problem.groups if each.model in models), key=lambda g: g.id):
        n = group.requests
        for kind, time in group.time.items():
            service, tail = time.service, time.whole_tail
            sums[group.model, kind] += (n, service.mean, service.var, n * tail.mean, n * tail.var)
    times: dict[ModelId, dict[str, GroupTime]] = {}
    for (model, kind), total in sums.items():
        service_s, service_var, tail_s, tail_var = (float(each) for each in total[1:] / total[0])
        time = GroupTime(service=Normal(service_s, service_var), tail=Normal(tail_s, tail_var))
        times.setdefault(model, {})[kind] = time
    return times
