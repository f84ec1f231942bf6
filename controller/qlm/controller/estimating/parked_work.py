"""What the requests need that an agent holds beyond its batch, as far as they go before the one asked about.

An agent starts what it holds by urgency. One that has not run yet goes before all that wait in the queue,
however much more urgent they are: nothing is pulled until it fits. Evicted ones let more urgent groups go
first, and while one of them is the most urgent that it holds, so do all behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from qlm.controller.estimating.state import EstimatorState
from qlm.domain.fleet import StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.service_table import ClassTimes

EVICTED_SHARE: Final = 1 / 3
"""Share of the requests of a class that were evicted, where nobody tells; 0.2 to 0.5 in simulations with two
classes."""


def still_staged(staged: Sequence[StagedWork], gone: int) -> tuple[StagedWork, ...]:
    """What is left of staged requests when so many have got their place: the most urgent first."""
    left = []
    for each in sorted(staged, key=lambda each: _urgency(each.cls)):
        evicted = min(gone, each.evicted)
        fresh = min(gone - evicted, each.fresh)
        gone -= evicted + fresh
        share = 1 - evicted / each.evicted if evicted else 1.0
        tokens = round(share * each.evicted_tokens)
        left.append(
            replace(each, fresh=each.fresh - fresh, evicted=each.evicted - evicted, evicted_tokens=tokens)
        )
    return tuple(each for each in left if each.fresh or each.evicted)


def parked_work(
    staged: Sequence[StagedWork],
    untold: float,
    model: ModelId,
    kind: str,
    state: EstimatorState,
    *,
    asked: RequestClass | None = None,
) -> Normal:
    """Time until the last of them has its place in a full batch, seconds.

    Args:
        staged: Those whose classes are known.
        untold: How many more there are.
        model: Of all of them.
        kind: Of the accelerator.
        state: What was learned.
        asked: Only those that go before a waiting request of this class; None for all.

    Returns:
        Each with the mean of its class; the variance is that of its lengths.
    """
    mean_s, var = 0.0, 0.0
    for cls, requests in _before(staged, asked):
        entry = state.times.entries.get((cls, kind))
        if entry is not None:
            mean_s += requests * entry.times.request_s
            var += requests * _request_var(entry.times)
    return Normal(mean_s, var) + _untold_work(untold, model, kind, state, asked)


def _before(staged: Sequence[StagedWork], asked: RequestClass | None) -> Iterator[tuple[RequestClass, int]]:
    """Yield how many of each class go before a request of the class asked about."""
    laxer = [each for each in staged if asked is not None and _urgency(each.cls) > _urgency(asked)]
    lets_pass = any(each.evicted for each in laxer)
    for each in staged:
        if each not in laxer:
            yield each.cls, each.fresh + each.evicted
        elif not lets_pass:
            yield each.cls, each.fresh


def _request_var(times: ClassTimes) -> float:
    decode_s = times.request_s - times.prompt_s
    return decode_s**2 * times.cv2 + times.prompt_s**2 * times.prompt_cv2


def _untold_work(
    requests: float, model: ModelId, kind: str, state: EstimatorState, asked: RequestClass | None
) -> Normal:
    """Each class is as likely as its requests are among those that come, but all may well be of one."""
    costs: list[tuple[float, float]] = []
    for cls, each in state.arrivals.items():
        entry = state.times.entries.get((cls, kind)) if cls.model == model else None
        if entry is None:
            continue
        weight, request_s = each.count + 1, entry.times.request_s
        follows = asked is not None and _urgency(cls) > _urgency(asked)
        evicted = weight * EVICTED_SHARE if follows else 0.0
        costs += [(weight - evicted, request_s), (evicted, 0.0)]
    total = sum(weight for weight, _ in costs)
    if not total:
        return NOTHING
    mean_s = sum(weight * request_s for weight, request_s in costs) / total
    square = sum(weight * request_s**2 for weight, request_s in costs) / total
    return Normal(requests * mean_s, requests * square + requests**2 * (square - mean_s**2))


def _urgency(cls: RequestClass) -> tuple[int, float]:
    return cls.priority, float("inf") if cls.due_ms is None else cls.due_ms
