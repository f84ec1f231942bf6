"""The admission signal: what a new request of each class can expect of the present plan.

A new request starts behind everything that is at least as urgent: up to the last such group of a queue,
and what the plan put before that. What is less urgent steps back. So it ends at the earliest when the
best instance ends it, and may end later only if more work that is as urgent comes before it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.arrays import Floats
from qlm.planner.policy.standing import Queue, queues_of
from qlm.planner.problem import GroupTime, Plan, Problem
from qlm.planner.verify.placing import Places
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionClass:
    """Requests that are treated alike.

    Attributes:
        model: That serves them.
        target_s: Time to their deadline on arrival, seconds; None if they have none.
        priority: Lower goes first.
        time: Drain and tail of one request by kind; None for the mean of what waits for the model.
    """

    model: ModelId
    target_s: float | None
    priority: int = 0
    time: Mapping[str, GroupTime] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a new request of a class can expect.

    Attributes:
        cls: The class.
        instance: That would end it first, by mean; None if none can, or nothing is known of its time.
        leaves: When it leaves the queue: its completion less its tail. From now, seconds; None likewise.
        completion: From now, seconds; None likewise.
        p_met: Probability to meet the target; 1 without a target, 0 without an instance.
    """

    cls: AdmissionClass
    instance: InstanceId | None
    leaves: Normal | None
    completion: Normal | None
    p_met: float


def admission(problem: Problem, plan: Plan, classes: Iterable[AdmissionClass]) -> tuple[Admission, ...]:
    """Give the earliest feasible completion of a new request of each class under the present plan.

    Args:
        problem: What waits, and the fleet.
        plan: A feasible answer to it.
        classes: To be told about; cost: (classes x instances x queue).

    Returns:
        One answer per class, in their order; of equal instances the one with the first id.
    """
    queues = queues_of(Places.of(problem), plan)
    means = _request_times(problem)
    return tuple(_expected(queues, cls, problem.now_s, means.get(cls.model, {})) for cls in classes)


def _expected(
    queues: Iterable[Queue], cls: AdmissionClass, now_s: float, mean: Mapping[str, GroupTime]
) -> Admission:
    times = mean if cls.time is None else cls.time
    deadline_s = None if cls.target_s is None else now_s + cls.target_s
    best: tuple[InstanceId, Normal, Normal] | None = None
    for queue in queues:
        time = times.get(queue.instance.kind)
        if time is None or cls.model not in queue.kind.models:
            continue
        ahead = queue.behind_urgent(cls.priority, deadline_s)
        leaves = queue.start_behind(ahead, cls.model) + time.drain
        if best is None or leaves.mean + time.tail.mean < best[2].mean:
            best = (queue.instance.id, leaves, leaves + time.tail)
    if best is None:
        return Admission(cls=cls, instance=None, leaves=None, completion=None, p_met=0.0)
    instance, leaves, completion = best
    p_met = 1.0 if cls.target_s is None else completion.at_most(cls.target_s)
    return Admission(cls=cls, instance=instance, leaves=leaves, completion=completion, p_met=p_met)


def _request_times(problem: Problem) -> dict[ModelId, dict[str, GroupTime]]:
    """Time of one request by model and kind: the mean of those that wait, weighed by requests."""
    sums: defaultdict[tuple[ModelId, str], Floats] = defaultdict(lambda: np.zeros(5))
    for group in sorted(problem.groups, key=lambda g: g.id):
        n = group.requests
        for kind, time in group.time.items():
            drain, tail = time.drain, time.tail
            sums[group.model, kind] += (n, drain.mean, drain.var, n * tail.mean, n * tail.var)
    times: dict[ModelId, dict[str, GroupTime]] = {}
    for (model, kind), total in sums.items():
        drain_s, drain_var, tail_s, tail_var = (float(each) for each in total[1:] / total[0])
        time = GroupTime(drain=Normal(drain_s, drain_var), tail=Normal(tail_s, tail_var))
        times.setdefault(model, {})[kind] = time
    return times
