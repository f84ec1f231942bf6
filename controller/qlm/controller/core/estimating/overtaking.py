"""Expected arrivals of more urgent classes, which will overtake a waiting request.

The order is the one by deadlines that planners start from. The formulas are in
`rct_estimator.cluster.overtaking`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.domain.group import RequestClass
from qlm.rct_estimator.cluster.arrays import Overtakers
from qlm.rct_estimator.cluster.overtaking import Overtaking
from qlm.rct_estimator.normal import Normal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedArrivals:
    """Expected arrivals of one class at an instance.

    Attributes:
        cls: The class.
        share: Share of the instance's full batch that they take.
        request_s: Time of the full batch that one of them takes, seconds.
        work_cv2: Squared coefficient of variation of that time.
        dispersion: Variance over mean of the number of arrivals in a time.
        uncertainty: Relative standard deviation of the share.
    """

    cls: RequestClass
    share: float
    request_s: float
    work_cv2: float
    dispersion: float
    uncertainty: float


def with_overtaking(
    wait: Normal, snapshot: Snapshot, instance: InstanceSnapshot, cls: RequestClass, deadline_s: float
) -> Normal:
    """Return a wait lengthened by arrivals of more urgent classes; see `Overtaking.lengthen`.

    Args:
        wait: Wait behind the present queue.
        snapshot: The cluster.
        instance: The instance.
        cls: Class of the request.
        deadline_s: Deadline of the request from now; `inf` for none.
    """
    entry = snapshot.state.times.entries.get((cls, instance.status.accelerator))
    windows = [(_window_s(each.cls, cls, deadline_s), each) for each in expected_arrivals(snapshot, instance)]
    urgent = sorted(
        ((window_s, each) for window_s, each in windows if window_s > 0), key=lambda pair: pair[0]
    )
    if entry is None or not urgent:
        return wait
    columns = [
        (
            window_s,
            e.share,
            e.share / e.request_s,
            e.request_s * (e.dispersion + e.work_cv2),
            e.uncertainty**2,
        )
        for window_s, e in urgent
    ]
    window_s, share, rate_rps, work_dispersion_s, share_cv2 = np.array(columns).T[:, None, :]
    overtaking = Overtaking(
        window_s=window_s,
        share=share,
        rate_rps=rate_rps,
        work_dispersion_s=work_dispersion_s,
        share_cv2=share_cv2,
    ).with_preemptions(
        np.array([entry.times.prompt_s * instance.correction.factor]),
        np.array([entry.on_kind.state.workload.prompt_tokens]),
        np.array([instance.repeats.tokens]),
        np.array([instance.repeats.busy_s]),
    )
    mean_s, var = overtaking.lengthen(np.array([wait.mean]), np.array([wait.var]))
    return Normal(float(mean_s[0]), float(var[0]))


def expected_arrivals(snapshot: Snapshot, instance: InstanceSnapshot) -> Iterator[ExpectedArrivals]:
    """Yield the expected arrivals; each class is divided evenly among the instances that serve its model."""
    kind = instance.status.accelerator
    for cls, arrivals in snapshot.state.arrivals.items():
        entry = snapshot.state.times.entries.get((cls, kind))
        if entry is None or not arrivals.count or cls.model not in instance.status.models:
            continue
        request_s = entry.times.request_s * instance.correction.factor
        state = entry.on_kind.state
        yield ExpectedArrivals(
            cls=cls,
            share=arrivals.rate_rps * request_s / snapshot.serving[cls.model],
            request_s=request_s,
            work_cv2=state.work_cv2,
            dispersion=arrivals.dispersion,
            uncertainty=math.hypot(
                arrivals.uncertainty, state.work_uncertainty, instance.correction.uncertainty
            ),
        )


def _window_s(other: RequestClass, cls: RequestClass, deadline_s: float) -> float:
    """Return the time for which arrivals of another class overtake the request."""
    ends_s = _overtaking_ends_s(other, cls)
    return 0.0 if ends_s == math.inf else deadline_s - ends_s


def _overtaking_ends_s(other: RequestClass, cls: RequestClass) -> float:
    """Return the time before the deadline from which arrivals of another class no longer overtake.

    -inf if they overtake at any time, also after the deadline; inf if they never overtake.
    """
    if other.priority != cls.priority:
        return -math.inf if other.priority < cls.priority else math.inf
    if other.due_ms is None or other == cls:
        return math.inf
    return other.due_ms / 1000


def overtakers(snapshot: Snapshot) -> Overtakers:
    """Return the expected arrivals at all instances, and the classes that they overtake, as arrays."""
    times, instances = snapshot.state.times, list(snapshot.instances.values())
    found = [(cls, each) for cls, each in snapshot.state.arrivals.items() if each.count and cls in times.cls]
    kinds = np.array([times.kind[i.status.accelerator] for i in instances], dtype=np.int64)
    at = np.array([times.cls[cls] for cls, _ in found], dtype=np.int64)[None, :], kinds[:, None]
    factor = np.array([[i.correction.factor] for i in instances])
    served = [[cls.model in i.status.models for cls, _ in found] for i in instances]
    request_s = times.table.request_s[at] * factor
    possible = np.isfinite(request_s) & np.array(served, dtype=np.bool_).reshape(request_s.shape)
    request_s = np.where(possible, request_s, 0.0)
    each_rps = np.array([each.rate_rps / max(1, snapshot.serving[cls.model]) for cls, each in found])
    rate_rps = np.where(possible, each_rps, 0.0)
    common_var = np.array([[i.correction.uncertainty**2] for i in instances])
    prompts = {cls: e.on_kind.state.workload.prompt_tokens for (cls, _), e in times.entries.items()}
    return Overtakers(
        target_s=np.array(
            [[_overtaking_ends_s(other, cls) for other, _ in found] for cls in times.cls]
        ).reshape(len(times.cls), len(found)),
        share=rate_rps * request_s,
        rate_rps=rate_rps,
        work_dispersion_s=request_s
        * (np.array([each.dispersion for _, each in found]) + times.table.cv2[at]),
        share_cv2=common_var
        + np.array([each.uncertainty**2 for _, each in found])
        + times.table.work_uncertainty[at] ** 2,
        prompt_tokens=np.array([prompts.get(cls, 0.0) for cls in times.cls]),
        repeated=np.array([i.repeats.tokens for i in instances]),
        busy_s=np.array([i.repeats.busy_s for i in instances]),
    )
