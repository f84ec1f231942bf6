"""Work of the requests that an agent holds beyond its batch and that precede a queued request.

An agent starts the requests that it holds by urgency. A new one precedes all queued requests, however urgent
they
are: the agent pulls nothing until it fits. A preempted one lets more urgent groups pass; while it is the most
urgent of its agent, so do all behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from qlm.controller.core.estimating.state import EstimatorState
from qlm.domain.fleet import StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.urgency import class_urgency
from qlm.rct_estimator.cluster.service_table import ClassTimes
from qlm.rct_estimator.normal import NOTHING, Normal

PREEMPTED_SHARE: Final = 1 / 3
"""Assumed share of preempted requests where the agent does not report them; 0.2 to 0.5 in simulations with
two classes."""


def remaining_staged(staged: Sequence[StagedWork], started: int) -> tuple[StagedWork, ...]:
    """Return the held requests left after that many have got a batch slot, the most urgent first."""
    left = []
    for each in sorted(staged, key=lambda each: class_urgency(each.cls)):
        evicted = min(started, each.evicted)
        fresh = min(started - evicted, each.fresh)
        started -= evicted + fresh
        share = 1 - evicted / each.evicted if evicted else 1.0
        tokens = round(share * each.evicted_tokens)
        left.append(
            replace(each, fresh=each.fresh - fresh, evicted=each.evicted - evicted, evicted_tokens=tokens)
        )
    return tuple(each for each in left if each.fresh or each.evicted)


def predecessors_work(
    staged: Sequence[StagedWork],
    unclassified: float,
    model: ModelId,
    kind: str,
    state: EstimatorState,
    *,
    queued: RequestClass | None = None,
) -> Normal:
    """Return the time until the last predecessor has a slot of a full batch, seconds.

    Each counts with the mean of its class; the variance is that of the lengths.

    Args:
        staged: Held requests of known classes.
        unclassified: Number of further held requests.
        model: Model of all of them.
        kind: Kind of the accelerator.
        state: State of the estimator.
        queued: Count only those that precede a queued request of this class; None for all.
    """
    mean_s, var = 0.0, 0.0
    for cls, requests in _before(staged, queued):
        entry = state.times.entries.get((cls, kind))
        if entry is not None:
            mean_s += requests * entry.times.request_s
            var += requests * _request_var(entry.times)
    return Normal(mean_s, var) + _unclassified_work(unclassified, model, kind, state, queued)


def _before(staged: Sequence[StagedWork], queued: RequestClass | None) -> Iterator[tuple[RequestClass, int]]:
    """Yield the number of requests of each class that precede a queued request."""
    less_urgent = [each for each in staged if queued is not None and _follows(each.cls, queued)]
    lets_pass = any(each.evicted for each in less_urgent)
    for each in staged:
        if each not in less_urgent:
            yield each.cls, each.fresh + each.evicted
        elif not lets_pass:
            yield each.cls, each.fresh


def _follows(cls: RequestClass, queued: RequestClass) -> bool:
    return class_urgency(cls) > class_urgency(queued)


def _request_var(times: ClassTimes) -> float:
    decode_s = times.request_s - times.prompt_s
    return decode_s**2 * times.cv2 + times.prompt_s**2 * times.prompt_cv2


def _unclassified_work(
    requests: float, model: ModelId, kind: str, state: EstimatorState, queued: RequestClass | None
) -> Normal:
    """Return the work of requests of unknown classes: each class in proportion to its arrivals.

    All of them may well be of one class, so the variance between classes is common to them.
    """
    costs: list[tuple[float, float]] = []
    for cls, each in state.arrivals.items():
        entry = state.times.entries.get((cls, kind)) if cls.model == model else None
        if entry is None:
            continue
        weight, request_s = each.count + 1, entry.times.request_s
        follows = queued is not None and _follows(cls, queued)
        preempted = weight * PREEMPTED_SHARE if follows else 0.0
        costs += [(weight - preempted, request_s), (preempted, 0.0)]
    total = sum(weight for weight, _ in costs)
    if not total:
        return NOTHING
    mean_s = sum(weight * request_s for weight, request_s in costs) / total
    square = sum(weight * request_s**2 for weight, request_s in costs) / total
    return Normal(requests * mean_s, requests * square + requests**2 * (square - mean_s**2))
