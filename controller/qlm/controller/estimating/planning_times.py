"""Estimates in the form of the planning problem: `start + (r / n) drain + tail` for the r-th of n requests.

What the form cannot say, and what is done instead:

* Places that are free. The requests that fill them wait for nobody, which shortens the wait of all behind
  them (`fill_s` of an empty batch). The form knows no free places, so the saving is spread evenly over
  what waits for the model: in sum the queues are as long as they are. The saving after a model change
  is left out, since it is at most the decodes of the group behind it.
* The speed of single instances. Drains and tails are per kind: they use what its instances have in common.
* A tail is what an objective is about: up to the first token for TTFT classes, else to the end of the answer.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.controller.estimating.service_times import about_first_token
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.planner.problem import GroupTime
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import Normal

WAITED_SHARE_MIN: Final = 0.2
"""However many places are free, at least this share of the decodes counts: else all groups would seem to
fit on one instance."""


@dataclass(frozen=True, slots=True)
class PlanningForm:
    """A class on a kind: drain of n requests is n `each_s`, its variance n `own_var` + n^2 `common_var`.

    The tail is `first_token` or `answer`, whichever the objective is about.
    """

    each_s: float
    own_var: float
    common_var: float
    tail: Normal
    first_token: Normal
    answer: Normal
    token_s: float

    def time(self, requests: int) -> GroupTime:
        """Drain and tail of a group of so many."""
        drain = Normal(requests * self.each_s, requests * self.own_var + requests**2 * self.common_var)
        return GroupTime(drain=drain, tail=self.tail)


def planning_form(moment: Moment, cls: RequestClass, kind: str, waited: float) -> PlanningForm | None:
    """Work out the form of a class's groups on a kind of accelerator; None if they cannot run there.

    Args:
        moment: The present.
        cls: The class.
        kind: The kind.
        waited: Share of the decodes that others have to wait for; see `waited_shares`.
    """
    entry = moment.state.times.entries.get((cls, kind))
    if entry is None:
        return None
    correction = moment.pooled.get((cls.model, kind)) or Correction()
    times, factor, doubt = entry.times, correction.factor, correction.doubt
    prompt_s = times.prompt_s * factor
    decode_s = (times.request_s - times.prompt_s) * factor
    each_s = prompt_s + waited * decode_s
    first_token, answer = (_doubted(each.scaled(factor), doubt) for each in (entry.first_token, entry.answer))
    return PlanningForm(
        each_s=each_s,
        own_var=waited * decode_s**2 * times.cv2 + prompt_s**2 * times.prompt_cv2,
        common_var=(waited * decode_s * times.mean_doubt) ** 2 + (doubt * each_s) ** 2,
        tail=first_token if about_first_token(cls) else answer,
        first_token=first_token,
        answer=answer,
        token_s=entry.on_kind.state.iteration_s * factor,
    )


def _doubted(time: Normal, doubt: float) -> Normal:
    return Normal(time.mean, time.var + (doubt * time.mean) ** 2)


def busy_time(instance: InstanceMoment) -> Normal:
    """Time until an instance can start something new: none while a place is free.

    Loading comes first; then a full batch gives up a place every `request_s`, about exponentially spread.
    Parked requests do not count: what is more urgent than they are goes before them, and evicts more.
    """
    entry = instance.entry
    if instance.free > 0 or entry is None:
        return instance.loading
    next_s = entry.times.request_s * instance.correction.factor
    return instance.loading + Normal(next_s, next_s**2)


def waited_shares(moment: Moment) -> dict[ModelId, float]:
    """Share of the waiting requests' decodes, by model, that others have to wait for."""
    waiting: defaultdict[ModelId, int] = defaultdict(int)
    for group, _ in moment.groups:
        waiting[group.cls.model] += group.remaining
    saved: defaultdict[ModelId, float] = defaultdict(float)
    for instance in moment.instances.values():
        if instance.loaded is not None and instance.entry is not None:
            times = instance.entry.times
            request_s = max(times.request_s - times.prompt_s, 1e-9)
            saved[instance.loaded] += min(instance.free, times.batch) / times.batch * times.fill_s / request_s
    shares = {model: 1 - saved[model] / requests for model, requests in waiting.items() if requests}
    return {model: max(WAITED_SHARE_MIN, share) for model, share in shares.items() if math.isfinite(share)}
