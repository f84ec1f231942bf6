"""Who will yet overtake a waiting request: arrivals of classes that are more urgent, as long as it waits.

Taken from the order by deadlines that planners start from: an arrival of class c at time t goes first if its
deadline t + T_c is before that of the one that waits. While they come, the queue before it drains by
1 - rho only, rho being the share of the instance that they take.
"""

import math
from collections.abc import Iterator
from typing import Final

from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.domain.group import RequestClass
from qlm.rct_estimator.normal import Normal

SHARE_MAX: Final = 0.95
"""Overtaking classes take at most this share of an instance: else a wait would have no end to forecast."""


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
        Mean: the least fixed point of W' = W + sum of rho_c min(W', lead_c). Variance: that of W as often
        longer, that of Poisson arrivals with the classes' own lengths, and of the rates, which rest on
        few arrivals.
    """
    urgent = sorted(_urgent(moment, instance, cls, deadline_s))
    mean, share, var = wait.mean, 0.0, wait.var
    base = wait.mean
    # Classes with the shortest lead stop overtaking first: what they have added then is a constant.
    for rank, (lead_s, _, _, _) in enumerate(urgent):
        share = min(SHARE_MAX, sum(rho for _, rho, _, _ in urgent[rank:]))
        mean = base / (1 - share)
        if mean <= lead_s:
            break
        base += urgent[rank][1] * lead_s
        mean = base
    if mean <= wait.mean:
        return wait
    longer = mean / max(wait.mean, 1e-9)
    for lead_s, rho, request_s, count in urgent:
        added_s = rho * min(mean, lead_s)
        var += added_s * request_s * 2 + added_s**2 / max(1.0, count)
    return Normal(mean, var * min(longer, 1 / (1 - SHARE_MAX)))


def _urgent(
    moment: Moment, instance: InstanceMoment, cls: RequestClass, deadline_s: float
) -> Iterator[tuple[float, float, float, float]]:
    """Yield lead, share of the instance, time of one request, and arrivals counted, by class."""
    for other, share, request_s in _coming(moment, instance):
        lead_s = _lead_s(other, cls, deadline_s)
        if lead_s > 0:
            yield lead_s, share, request_s, moment.state.arrivals[other].count


def offered(moment: Moment, instance: InstanceMoment) -> float:
    """Share of an instance's full batch that arrivals will keep busy, in [0, 1]."""
    return min(1.0, sum(share for _, share, _ in _coming(moment, instance)))


def _coming(moment: Moment, instance: InstanceMoment) -> Iterator[tuple[RequestClass, float, float]]:
    """Yield the classes that arrive, the share of the instance that each takes, and one request's time.

    A class is taken to be spread evenly over the instances that serve its model.
    """
    kind = instance.status.accelerator
    for cls, arrivals in moment.state.arrivals.items():
        entry = moment.state.times.entries.get((cls, kind))
        if entry is None or not arrivals.count or cls.model not in instance.status.models:
            continue
        request_s = entry.times.request_s * instance.correction.factor
        yield cls, arrivals.rate_rps * request_s / moment.serving[cls.model], request_s


def _lead_s(other: RequestClass, cls: RequestClass, deadline_s: float) -> float:
    """How long arrivals of another class will still go before it."""
    if other.priority != cls.priority:
        return math.inf if other.priority < cls.priority else 0.0
    if other.target_ms is None or other == cls:
        return 0.0
    return deadline_s - other.target_ms / 1000
