"""Estimates in the form of the planning problem: `start + (r / n) service + tail` for the r-th of n requests.

The form is coarser than the estimator:

* It has no free batch slots. Requests that fill them wait for no other, which shortens all waits behind them
  (`fill_s` of an empty batch). The saving is spread evenly over the waiting requests of the model, so the
  total length of the queues is right. The saving after a model swap is omitted: it is at most the decodes of
  the group behind it.
* It has no speeds of single instances. Service times and tails are per kind, with the common correction.
* A tail ends with what the SLO measures: the first token for TTFT classes, else the end of the answer. It is
  that of the batch in which the group will run: requests decode faster in a small one (`batch_tails`).
"""

import math
from collections import Counter, defaultdict
from typing import Final

from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.urgency import SLACK_OF_S, SLACK_SHARE
from qlm.domain.values import value
from qlm.planner.problem import GroupTime
from qlm.rct_estimator.cluster.batch_tails import BatchTails
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state

WAITED_SHARE_MIN: Final = 0.2
"""Lower bound of the share of decodes that counts; without it, one instance would seem enough for all."""


@value(kw_only=False)
class PlanningForm:
    """Times of a class on a kind of accelerator.

    The service time of n requests is n `each_s`, with variance n `own_var`. Shared errors come on top:
    that of the mean length of the class, with standard deviation n `class_sd_s`, and that of the speed.

    Attributes:
        tail: Time from a slot of a full batch to what the SLO measures.
        prompts_max_s: Prompts that agents let an engine have before its own, seconds (decision 50).
        entry: The class on the kind.
        correction: Speed correction.
    """

    each_s: float
    own_var: float
    class_sd_s: float
    tail: Normal
    prompts_max_s: float
    entry: ClassEntry
    correction: Correction

    @property
    def takes_s(self) -> float:
        """Mean time from a slot of a full batch to what the SLO measures, behind those prompts."""
        before_s = self.entry.on_kind.state.prompts_before_s * self.correction.factor
        return self.tail.mean - max(0.0, before_s - self.prompts_max_s)

    def time(self, requests: int, batch: float = math.inf) -> GroupTime:
        """Return service time and tail of a group of that size in a batch of about `batch`."""
        service = Normal(requests * self.each_s, requests * self.own_var)
        factor = self.correction.factor
        tail = self.entry.tails.at(batch, self.prompts_max_s / factor).scaled(factor)
        return GroupTime(
            service=service,
            tail=tail,
            class_sd_s=requests * self.class_sd_s,
            speed_sd_s=self.correction.uncertainty * service.mean,
            tail_speed_sd_s=self.correction.uncertainty * tail.mean,
        )


@value(kw_only=False)
class FormInBatch:
    """Times of one request of a class in a batch of a size: requests decode faster in a small one.

    Attributes:
        form: The class on the kind.
        batch: The requests in the batch, this one included; at most the full one counts.
    """

    form: PlanningForm
    batch: float

    @property
    def time(self) -> GroupTime:
        """Service time and tail."""
        return self.form.time(1, self.batch)

    @property
    def first_token(self) -> Normal:
        """Time from its batch slot to its first token."""
        return self._measured(self.form.entry.begins)

    @property
    def answer(self) -> Normal:
        """Time from its batch slot to its end."""
        return self._measured(self.form.entry.ends)

    @property
    def token_s(self) -> float:
        """Time per token."""
        entry = self.form.entry
        state = entry.on_kind.state
        if self.batch < state.batch:
            state = steady_state(entry.profile, state.workload, batch=self.batch)
        return state.iteration_s * self.form.correction.factor

    @property
    def alone(self) -> "FormInBatch":
        """The same without others in the batch."""
        return FormInBatch(self.form, 1.0)

    def _measured(self, tails: BatchTails) -> Normal:
        correction = self.form.correction
        return _with_uncertainty(tails.at(self.batch).scaled(correction.factor), correction.uncertainty)


class PlanningForms:
    """The forms of the classes in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._entries = snapshot.state.times.entries
        self._corrections = snapshot.pooled
        self._waited = _waited_shares(snapshot)
        self._slacks_s = _tightest_slacks_s(snapshot)

    def of(self, cls: RequestClass, kind: str) -> PlanningForm | None:
        """Return the form of a class on a kind of accelerator; None if it cannot run there."""
        entry = self._entries.get((cls, kind))
        if entry is None:
            return None
        correction = self._corrections.get((cls.model, kind)) or Correction()
        waited, slack_s = self._waited.get(cls.model, 1.0), self._slacks_s.get(cls.model, math.inf)
        return form_of(cls, entry, correction, waited, slack_s)


def form_of(
    cls: RequestClass,
    entry: ClassEntry,
    correction: Correction,
    waited: float = 1.0,
    slack_s: float = math.inf,
) -> PlanningForm:
    """Compute the form of a class on a kind from its entry.

    Args:
        cls: The class.
        entry: It on the kind.
        correction: Speed correction.
        waited: Share of the decodes that other requests wait for.
        slack_s: The tightest slack that is expected of its model: agents give engines prompts for a share of
            it.
    """
    times, factor, uncertainty = entry.times, correction.factor, correction.uncertainty
    prompt_s = times.prompt_s * factor
    decode_s = (times.request_s - times.prompt_s) * factor
    each_s = prompt_s + waited * decode_s
    tail = (entry.first_token if cls.about_first_token else entry.answer).scaled(factor)
    return PlanningForm(
        each_s=each_s,
        own_var=waited * decode_s**2 * times.cv2 + prompt_s**2 * times.prompt_cv2,
        class_sd_s=waited * decode_s * times.work_uncertainty,
        tail=_with_uncertainty(tail, uncertainty),
        prompts_max_s=_prompts_max_s(entry.profile, min(slack_s, _slack_s(cls))),
        entry=entry,
        correction=correction,
    )


def _prompts_max_s(profile: Profile, slack_s: float) -> float:
    """Return the time of prompts that agents let an engine have: two iterations full of them in any case."""
    return max(SLACK_SHARE * slack_s, 2 * profile.iteration.linear(profile.batched_tokens_max) / 1e3)


def _tightest_slacks_s(snapshot: Snapshot) -> dict[ModelId, float]:
    """Return the least objective by model, seconds, of the classes of which requests are expected."""
    slacks_s: dict[ModelId, float] = {}
    for cls, arrivals in snapshot.state.arrivals.items():
        if arrivals.accepted_rps * SLACK_OF_S >= 1:
            slacks_s[cls.model] = min(slacks_s.get(cls.model, math.inf), _slack_s(cls))
    return slacks_s


def _slack_s(cls: RequestClass) -> float:
    return math.inf if cls.late or not cls.target_ms else cls.target_ms / 1e3


def _with_uncertainty(time: Normal, uncertainty: float) -> Normal:
    return Normal(time.mean, time.var + (uncertainty * time.mean) ** 2)


def busy_time(instance: InstanceSnapshot) -> Normal:
    """Return the time until an instance can start a new request; only loading counts while a slot is free.

    A full batch frees a slot every `request_s`, about exponentially distributed. Requests that the agent
    holds beyond its batch do not count: more urgent ones precede them, and preempt.
    """
    entry = instance.entry
    if instance.free > 0 or entry is None:
        return instance.loading
    next_s = entry.times.request_s * instance.correction.factor
    return instance.loading + Normal(next_s, next_s**2)


def waiting_requests(snapshot: Snapshot) -> Counter[ModelId]:
    """Return the number of waiting requests by model."""
    waiting: Counter[ModelId] = Counter()
    for group, _ in snapshot.groups:
        waiting[group.cls.model] += group.remaining
    return waiting


def _waited_shares(snapshot: Snapshot) -> dict[ModelId, float]:
    """Return the share of the waiting requests' decodes that other requests wait for, by model."""
    waiting = waiting_requests(snapshot)
    saved: defaultdict[ModelId, float] = defaultdict(float)
    for instance in snapshot.instances.values():
        if instance.loaded is not None and instance.entry is not None:
            times = instance.entry.times
            request_s = max(times.request_s - times.prompt_s, 1e-9)
            saved[instance.loaded] += min(instance.free, times.batch) / times.batch * times.fill_s / request_s
    shares = {model: 1 - saved[model] / requests for model, requests in waiting.items() if requests}
    return {model: max(WAITED_SHARE_MIN, share) for model, share in shares.items() if math.isfinite(share)}
