"""Who will yet overtake a waiting request: arrivals of classes that are more urgent, as long as it waits.

Taken from the order by deadlines that planners start from: an arrival of class c at time t goes first if its
deadline t + T_c is before that of the one that waits. While they come, the queue before it drains by
1 - rho only, rho being the share of the instance that they take.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.estimating.instances import Repeats
from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.domain.group import RequestClass
from qlm.rct_estimator.normal import Normal

SHARE_MAX: Final = 0.95
"""Overtaking classes take at most this share of an instance: else a wait would have no end to forecast."""

EVICTIONS: Final = Normal(0.1, 0.06**2)
"""How many requests of an overtaken class are evicted for each one that overtakes it, whose prompts are then
computed again, before an instance was watched: 0 to 0.19 in simulations of five profiles at load 1.2, none to
0.05 at 0.9."""


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
        Mean: the least fixed point of W' = W + sum of rho_c min(W', lead_c), a busy period where all
        leads are longer. Variance: with rho that of the classes that overtake to the end, everything that
        makes W' longer lets more of them come, by 1 / (1 - rho): what W varies by, the work that comes
        (its number with the class's dispersion, each request with the cost of its own length), and how
        far rho_c is off, which is common to all that come of a class. Shares include what evictions cost.
    """
    leads = {each: _lead_s(each.cls, cls, deadline_s) for each in coming(moment, instance)}
    leads = _evicting({each: lead_s for each, lead_s in leads.items() if lead_s > 0}, moment, instance, cls)
    urgent = sorted(leads, key=lambda each: leads[each])
    mean, share = _mean(wait.mean, [(leads[each], each.share) for each in urgent])
    if mean <= wait.mean:
        return wait
    var = wait.var
    for each in urgent:
        added_s = each.share * min(mean, leads[each])
        var += added_s * each.request_s * (each.dispersion + each.work_cv2) + (each.doubt * added_s) ** 2
    return Normal(mean, var / (1 - share) ** 2)


def _evicting(
    urgent: Mapping[Coming, float], moment: Moment, instance: InstanceMoment, cls: RequestClass
) -> dict[Coming, float]:
    """Add to what overtakes that each evicted request of the class has its prompt computed again."""
    entry = moment.state.times.entries.get((cls, instance.status.accelerator))
    if entry is None:
        return dict(urgent)
    again_s = entry.times.prompt_s * instance.correction.factor
    rate_rps = sum(each.share / each.request_s for each in urgent)
    evicted = evictions(instance.repeats, rate_rps, entry.on_kind.state.workload.prompt_tokens)
    after = {}
    for each, lead_s in urgent.items():
        extra = evicted.scaled(again_s / each.request_s)
        doubt = math.hypot(each.doubt, math.sqrt(extra.var) / (1 + extra.mean))
        after[replace(each, share=each.share * (1 + extra.mean), doubt=doubt)] = lead_s
    return after


def evictions(repeats: Repeats, rate_rps: float, prompt_tokens: float) -> Normal:
    """How many requests are evicted for each one that overtakes, as was seen lately.

    A Poisson count whose mean has a gamma prior with the moments of `EVICTIONS`.

    Args:
        repeats: What the instance computed again.
        rate_rps: Overtaking requests per second there.
        prompt_tokens: Of one evicted request.
    """
    strength = EVICTIONS.mean / EVICTIONS.var
    seen = repeats.tokens / max(1.0, prompt_tokens)
    exposure = strength + rate_rps * repeats.busy_s
    mean = (strength * EVICTIONS.mean + seen) / exposure
    return Normal(mean, mean / exposure)


def _mean(wait_s: float, urgent: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Find the fixed point for (lead, share) by rising lead; return the share of those before it, too."""
    base_s, mean_s, share = wait_s, wait_s, 0.0
    # Classes with the shortest lead stop overtaking first: what they have added then is a constant.
    for rank, (lead_s, own) in enumerate(urgent):
        share = min(SHARE_MAX, sum(rho for _, rho in urgent[rank:]))
        mean_s = base_s / (1 - share)
        if mean_s <= lead_s:
            return mean_s, share
        base_s += own * lead_s
        mean_s = base_s
    return mean_s, 0.0


def offered(moment: Moment, instance: InstanceMoment) -> float:
    """Share of an instance's full batch that arrivals will keep busy, in [0, 1]."""
    return min(1.0, sum(each.share for each in coming(moment, instance)))


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
    if other.priority != cls.priority:
        return math.inf if other.priority < cls.priority else 0.0
    if other.due_ms is None or other == cls:
        return 0.0
    return deadline_s - other.due_ms / 1000
