"""The admission signal: forecasts for a request of each class that arrives now, for the gateways."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.estimating.planning_times import FormInBatch
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.controller.core.expected.corrected import CorrectedForecasts
from qlm.controller.core.problem import arriving_forms
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.planner.admission_signal import (
    CLASSES_MAX,
    DEPARTURE_POINTS_MAX,
    NO_DEPARTURES,
    AdmissionSignal,
    ClassForecast,
    DepartureCurve,
)
from qlm.planner.arrays import Floats
from qlm.planner.policy.admission import Admission, AdmissionClass, admission
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.readers import time_behind_s
from qlm.rct_estimator.throughput import steady_state

EACH_MIN_S: Final = 1e-6
"""Lower bound of the time that a request adds to the wait of others, seconds."""


def admission_signal(
    snapshot: Snapshot, problem: Problem, plan: Plan, patience: Patience | None = None
) -> AdmissionSignal:
    """Forecast an arriving request of each known class, and the departure curves of the queues.

    Args:
        snapshot: Origin of the problem.
        problem: The planning problem.
        plan: A feasible plan of it.
        patience: That of agents that serve in visits; None if they follow their queue.
    """
    corrected = CorrectedForecasts.of(snapshot, problem, plan, patience)
    classes = _forecast_classes(snapshot)
    forms = arriving_forms(snapshot, problem, classes)
    waiting = _waiting(snapshot)
    departures = _departure_curves(snapshot, serve(ProblemIndex.of(problem), plan))
    kinds = {each.id: each.kind for each in problem.instances}
    signals = admission(problem, plan, [_admission_class(cls, forms[cls]) for cls in classes])
    forecasts = {
        cls: _forecast(
            cls,
            signal,
            forms[cls],
            kinds,
            waiting[cls],
            departures.get(cls, NO_DEPARTURES),
            corrected,
            cls.tokens_per_s if snapshot.fleet.bounds_readers else None,
        )
        for cls, signal in zip(classes, signals, strict=True)
        if signal.instance is not None
    }
    return AdmissionSignal(at_ms=snapshot.now_ns // 1_000_000, departures=departures[None], classes=forecasts)


def _forecast_classes(snapshot: Snapshot) -> list[RequestClass]:
    """Return the classes to forecast, most waiting requests first; no request arrives in a late class."""
    waiting = _waiting(snapshot)
    known = {cls for cls, _ in snapshot.state.times.entries if not cls.late}
    return sorted(known, key=lambda cls: (-waiting[cls], cls.queue, cls.target_ms or 0.0))[:CLASSES_MAX]


def _waiting(snapshot: Snapshot) -> Counter[RequestClass]:
    return Counter({cls: view.queued for cls, view in snapshot.classes.items()})


def _admission_class(cls: RequestClass, forms: Mapping[str, FormInBatch]) -> AdmissionClass:
    return AdmissionClass(
        model=cls.model,
        target_s=None if cls.target_ms is None else cls.target_ms / 1000,
        priority=cls.priority,
        time={kind: form.time for kind, form in forms.items()},
    )


def _forecast(
    cls: RequestClass,
    signal: Admission,
    forms: Mapping[str, FormInBatch],
    kinds: Mapping[InstanceId, str],
    waiting: int,
    departures: DepartureCurve,
    corrected: CorrectedForecasts,
    pace: float | None,
) -> ClassForecast:
    """Forecast first token and end on the chosen instance, and alone on the fastest kind in the fleet.

    Of readers whose pace (tokens per second) no batch keeps, the first token counts as later by as much as
    the answer falls behind them after it.
    """
    assert signal.instance is not None
    assert signal.leaves is not None
    here = forms[kinds[signal.instance]]
    able = [forms[kind] for kind in kinds.values() if kind in forms]
    alone = min((form.alone for form in able), key=lambda form: form.answer.mean)
    expected = corrected.arriving(cls, signal.instance, signal.leaves, here.first_token, here.answer)
    behind = Normal(0.0 if pace is None else _behind_s(here, pace))
    alone_behind = Normal(0.0 if pace is None else min(_behind_s(form, pace) for form in able))
    return ClassForecast(
        cls=cls,
        waiting=waiting,
        instance=signal.instance,
        wait=expected.leaves,
        first_token=expected.first_token + behind,
        completion=expected.ends,
        alone_first_token=alone.time.whole_service + alone.first_token + alone_behind,
        alone_completion=alone.time.whole_service + alone.answer,
        token_s=here.token_s,
        each_s=1.0 / sum(1.0 / max(form.form.each_s, EACH_MIN_S) for form in able),
        departures=departures,
    )


def _behind_s(joined: FormInBatch, tokens_per_s: float) -> float:
    """Return the lateness of the last token of a request that runs alone, beyond that of the first."""
    form = joined.form
    entry = form.entry
    state = entry.on_kind.state
    if state.iteration_s * tokens_per_s <= 1.0:
        return 0.0  # its batch is bounded to keep up
    alone = steady_state(entry.profile, state.workload, batch=1.0).corrected(form.correction)
    steps = np.array([max(0.0, state.workload.output.mean - 1)])
    return float(time_behind_s(steps, alone.iteration_s, tokens_per_s)[0])


def _departure_curves(
    snapshot: Snapshot, served: Iterable[Served]
) -> dict[RequestClass | None, DepartureCurve]:
    """Return the departure curve of each class, its late requests included; under None, of all requests.

    Requests that have become late still count in the depth of the class that they came in.
    """
    cls_of = {group.id: replace(view.cls, late=False) for group, view in snapshot.groups}
    of: dict[RequestClass | None, list[Served]] = {None: []}
    for each in served:
        of[None].append(each)
        of.setdefault(cls_of[each.group.id], []).append(each)
    return {cls: departure_curve(groups) for cls, groups in of.items()}


def departure_curve(served: Sequence[Served]) -> DepartureCurve:
    """Return the departure curve of groups: requests leave evenly over the service time of their group.

    Up to `DEPARTURE_POINTS_MAX` starts and ends are exact. Beyond that, the curve has points at fixed shares
    of the requests, closer together near the beginning.
    """
    if not served:
        return NO_DEPARTURES
    start_s = np.array([max(0.0, each.start.mean) for each in served])
    end_s = start_s + np.array([max(0.0, each.time.service.mean) for each in served])
    requests = np.array([float(each.group.requests) for each in served])
    at_s = np.unique(np.concatenate(([0.0], start_s, end_s)))
    gone = _gone(at_s, start_s, end_s, requests)
    if len(at_s) > DEPARTURE_POINTS_MAX:
        first = int(np.searchsorted(gone, 0.0, side="right")) - 1
        shares = np.linspace(0.0, 1.0, DEPARTURE_POINTS_MAX - 1) ** 2
        wanted = shares * gone[-1]
        times = np.interp(wanted[1:], gone[first:], at_s[first:])
        at_s = np.concatenate(([0.0, at_s[first]], times))
        gone = np.concatenate(([0.0, 0.0], wanted[1:]))
    return DepartureCurve(after_s=tuple(at_s.tolist()), gone=tuple(gone.tolist()))


def _gone(at_s: Floats, start_s: Floats, end_s: Floats, requests: Floats) -> Floats:
    """Return the number of requests that have left by each of the ascending times."""
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
