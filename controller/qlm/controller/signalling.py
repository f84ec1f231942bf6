"""The admission signal of a moment: what a request of each class could expect if it came now."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from qlm.controller.estimating.moment import Moment
from qlm.controller.estimating.planning_times import PlanningForm
from qlm.controller.planning import class_forms
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.planner.admission_signal import (
    CLASSES_MAX,
    DRAIN_POINTS_MAX,
    NO_DRAIN,
    AdmissionSignal,
    ClassForecast,
    Drain,
)
from qlm.planner.arrays import Floats
from qlm.planner.policy.admission import Admission, AdmissionClass, admission
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.placing import Places
from qlm.planner.verify.timeline import Served, serve

EACH_MIN_S: Final = 1e-6
"""Least time that a request is taken to add to the wait of others."""


def admission_signal(moment: Moment, problem: Problem, plan: Plan) -> AdmissionSignal:
    """Forecast a request of each class that is known, and how what waits leaves the queues.

    Args:
        moment: What the problem was made of.
        problem: What was planned.
        plan: A feasible answer to it.
    """
    classes = _told_of(moment)
    forms = class_forms(moment, problem, classes)
    waiting = _waiting(moment)
    drains = _drains(moment, serve(Places.of(problem), plan))
    kinds = {each.id: each.kind for each in problem.instances}
    signals = admission(problem, plan, [_asked(cls, forms[cls]) for cls in classes])
    told = {
        cls: _forecast(cls, signal, forms[cls], kinds, waiting[cls], drains.get(cls, NO_DRAIN))
        for cls, signal in zip(classes, signals, strict=True)
        if signal.instance is not None
    }
    return AdmissionSignal(at_ms=moment.now_ns // 1_000_000, drain=drains[None], classes=told)


def _told_of(moment: Moment) -> list[RequestClass]:
    """Those with most waiting requests first; of equal ones, in their order. Nobody asks for late ones."""
    waiting = _waiting(moment)
    known = {cls for cls, _ in moment.state.times.entries if not cls.late}
    return sorted(known, key=lambda cls: (-waiting[cls], cls.queue, cls.target_ms or 0.0))[:CLASSES_MAX]


def _waiting(moment: Moment) -> Counter[RequestClass]:
    return Counter({cls: view.queued for cls, view in moment.classes.items()})


def _asked(cls: RequestClass, forms: Mapping[str, PlanningForm]) -> AdmissionClass:
    return AdmissionClass(
        model=cls.model,
        target_s=None if cls.target_ms is None else cls.target_ms / 1000,
        priority=cls.priority,
        time={kind: form.time(1) for kind, form in forms.items()},
    )


def _forecast(
    cls: RequestClass,
    signal: Admission,
    forms: Mapping[str, PlanningForm],
    kinds: Mapping[InstanceId, str],
    waiting: int,
    drain: Drain,
) -> ClassForecast:
    """Tell first token and end where it would run, and what they are alone on the best kind in the fleet."""
    assert signal.instance is not None
    assert signal.leaves is not None
    here = forms[kinds[signal.instance]]
    able = [forms[kind] for kind in kinds.values() if kind in forms]
    best = min(able, key=lambda form: form.answer.mean)
    return ClassForecast(
        cls=cls,
        waiting=waiting,
        instance=signal.instance,
        wait=signal.leaves,
        first_token=signal.leaves + here.first_token,
        completion=signal.leaves + here.answer,
        alone_first_token=best.time(1).drain + best.first_token,
        alone_completion=best.time(1).drain + best.answer,
        token_s=here.token_s,
        each_s=1.0 / sum(1.0 / max(form.each_s, EACH_MIN_S) for form in able),
        drain=drain,
    )


def _drains(moment: Moment, served: Iterable[Served]) -> dict[RequestClass | None, Drain]:
    """How each class's requests leave the queue; under None, all of them."""
    cls_of = {group.id: view.cls for group, view in moment.groups}
    of: dict[RequestClass | None, list[Served]] = {None: []}
    for each in served:
        of[None].append(each)
        of.setdefault(cls_of[each.group.id], []).append(each)
    return {cls: drain_of(groups) for cls, groups in of.items()}


def drain_of(served: Sequence[Served]) -> Drain:
    """How the requests of groups leave the queue: of each, evenly from its start over its mean drain.

    Up to `DRAIN_POINTS_MAX` starts and ends are told exactly; of more, the curve is told where certain
    shares of the requests have gone, closer together near the beginning.
    """
    if not served:
        return NO_DRAIN
    start_s = np.array([max(0.0, each.start.mean) for each in served])
    end_s = start_s + np.array([max(0.0, each.time.drain.mean) for each in served])
    requests = np.array([float(each.group.requests) for each in served])
    at_s = np.unique(np.concatenate(([0.0], start_s, end_s)))
    gone = _gone(at_s, start_s, end_s, requests)
    if len(at_s) > DRAIN_POINTS_MAX:
        first = int(np.searchsorted(gone, 0.0, side="right")) - 1
        shares = np.linspace(0.0, 1.0, DRAIN_POINTS_MAX - 1) ** 2
        wanted = shares * gone[-1]
        times = np.interp(wanted[1:], gone[first:], at_s[first:])
        at_s = np.concatenate(([0.0, at_s[first]], times))
        gone = np.concatenate(([0.0, 0.0], wanted[1:]))
    return Drain(after_s=tuple(at_s.tolist()), gone=tuple(gone.tolist()))


def _gone(at_s: Floats, start_s: Floats, end_s: Floats, requests: Floats) -> Floats:
    """Requests gone by each of the rising times: those of groups at their end, and shares of those begun."""
    gone = np.zeros(len(at_s))
    instant = end_s <= start_s
    np.add.at(gone, np.searchsorted(at_s, end_s[instant]), requests[instant])
    rate = np.zeros(len(at_s))
    slopes = requests[~instant] / (end_s[~instant] - start_s[~instant])
    np.add.at(rate, np.searchsorted(at_s, start_s[~instant]), slopes)
    np.add.at(rate, np.searchsorted(at_s, end_s[~instant]), -slopes)
    total = np.cumsum(gone)
    total[1:] += np.cumsum(np.cumsum(rate)[:-1] * np.diff(at_s))
    rising: Floats = np.minimum(np.maximum.accumulate(total), requests.sum())
    return rising
