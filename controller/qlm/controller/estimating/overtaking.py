"""Who will yet overtake a waiting request: arrivals of classes that are more urgent, as long as it waits.

Taken from the order by deadlines that planners start from; what follows is in `rct_estimator.overtaken`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.domain.group import RequestClass
from qlm.rct_estimator.cluster_arrays import Overtakers
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.overtaken import Overtaking


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """Requests of one class that are yet to arrive at an instance.

    Attributes:
        cls: The class.
        share: Of the instance's full batch that they take.
        request_s: What one of them takes of it.
        work_cv2: Squared coefficient of variation of that.
        dispersion: Variance over mean of how many come in a time.
        doubt: Relative standard deviation of the share.
    """

    cls: RequestClass
    share: float
    request_s: float
    work_cv2: float
    dispersion: float
    doubt: float


def with_overtaking(
    wait: Normal, moment: Moment, instance: InstanceMoment, cls: RequestClass, deadline_s: float
) -> Normal:
    """Lengthen a wait by what more urgent classes will put before it.

    Args:
        wait: Behind the present queue.
        moment: The present.
        instance: Where it waits.
        cls: Its class.
        deadline_s: Its deadline from now; `inf` for none.

    Returns:
        See `Overtaking.lengthened`; shares include what evictions cost.
    """
    entry = moment.state.times.entries.get((cls, instance.status.accelerator))
    leads = [(_lead_s(each.cls, cls, deadline_s), each) for each in coming(moment, instance)]
    urgent = sorted(((lead_s, each) for lead_s, each in leads if lead_s > 0), key=lambda pair: pair[0])
    if entry is None or not urgent:
        return wait
    columns = [
        (lead_s, e.share, e.share / e.request_s, e.request_s * (e.dispersion + e.work_cv2), e.doubt**2)
        for lead_s, e in urgent
    ]
    lead_s, share, rate_rps, noise_s, doubt_var = np.array(columns).T[:, None, :]
    overtaking = Overtaking(
        lead_s=lead_s, share=share, rate_rps=rate_rps, noise_s=noise_s, doubt_var=doubt_var
    ).evicting(
        np.array([entry.times.prompt_s * instance.correction.factor]),
        np.array([entry.on_kind.state.workload.prompt_tokens]),
        np.array([instance.repeats.tokens]),
        np.array([instance.repeats.busy_s]),
    )
    mean_s, var = overtaking.lengthened(np.array([wait.mean]), np.array([wait.var]))
    return Normal(float(mean_s[0]), float(var[0]))


def coming(moment: Moment, instance: InstanceMoment) -> Iterator[Coming]:
    """Yield what will arrive; each class evenly spread over the instances that serve its model."""
    kind = instance.status.accelerator
    for cls, arrivals in moment.state.arrivals.items():
        entry = moment.state.times.entries.get((cls, kind))
        if entry is None or not arrivals.count or cls.model not in instance.status.models:
            continue
        request_s = entry.times.request_s * instance.correction.factor
        state = entry.on_kind.state
        yield Coming(
            cls=cls,
            share=arrivals.rate_rps * request_s / moment.serving[cls.model],
            request_s=request_s,
            work_cv2=state.work_cv2,
            dispersion=arrivals.dispersion,
            doubt=math.hypot(arrivals.doubt, state.work_doubt, instance.correction.doubt),
        )


def _lead_s(other: RequestClass, cls: RequestClass, deadline_s: float) -> float:
    """How long arrivals of another class will still go before it."""
    target_s = _target_s(other, cls)
    return 0.0 if target_s == math.inf else deadline_s - target_s


def _target_s(other: RequestClass, cls: RequestClass) -> float:
    """How much before its deadline arrivals of another class go before it no longer: see `Overtakers`."""
    if other.priority != cls.priority:
        return -math.inf if other.priority < cls.priority else math.inf
    if other.due_ms is None or other == cls:
        return math.inf
    return other.due_ms / 1000


def overtakers(moment: Moment) -> Overtakers:
    """What will arrive at all instances, and whom it goes before, as arrays."""
    times, instances = moment.state.times, list(moment.instances.values())
    found = [(cls, each) for cls, each in moment.state.arrivals.items() if each.count and cls in times.cls]
    kinds = np.array([times.kind[i.status.accelerator] for i in instances], dtype=np.int64)
    at = np.array([times.cls[cls] for cls, _ in found], dtype=np.int64)[None, :], kinds[:, None]
    factor = np.array([[i.correction.factor] for i in instances])
    served = [[cls.model in i.status.models for cls, _ in found] for i in instances]
    request_s = times.table.request_s[at] * factor
    possible = np.isfinite(request_s) & np.array(served, dtype=np.bool_).reshape(request_s.shape)
    request_s = np.where(possible, request_s, 0.0)
    each_rps = np.array([each.rate_rps / max(1, moment.serving[cls.model]) for cls, each in found])
    rate_rps = np.where(possible, each_rps, 0.0)
    common_var = np.array([[i.correction.doubt**2] for i in instances])
    prompts = {cls: e.on_kind.state.workload.prompt_tokens for (cls, _), e in times.entries.items()}
    return Overtakers(
        target_s=np.array([[_target_s(other, cls) for other, _ in found] for cls in times.cls]).reshape(
            len(times.cls), len(found)
        ),
        share=rate_rps * request_s,
        rate_rps=rate_rps,
        noise_s=request_s * (np.array([each.dispersion for _, each in found]) + times.table.cv2[at]),
        doubt_var=common_var
        + np.array([each.doubt**2 for _, each in found])
        + times.table.mean_doubt[at] ** 2,
        prompt_tokens=np.array([prompts.get(cls, 0.0) for cls in times.cls]),
        repeated=np.array([i.repeats.tokens for i in instances]),
        busy_s=np.array([i.repeats.busy_s for i in instances]),
    )
