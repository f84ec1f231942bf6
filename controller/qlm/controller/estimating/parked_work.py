"""What the requests need that an agent holds beyond its batch; nobody tells of which classes they are."""

from collections.abc import Callable
from typing import Final

from qlm.controller.estimating.state import EstimatorState
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.rct_estimator.normal import NOTHING, Normal

EVICTED_SHARE: Final = 1 / 3
"""Share of the parked requests of a class that were evicted; 0.2 to 0.5 in simulations with two classes."""


def _never(cls: RequestClass) -> bool:
    return False


def parked_work(
    requests: float,
    model: ModelId,
    kind: str,
    state: EstimatorState,
    *,
    may_follow: Callable[[RequestClass], bool] = _never,
) -> Normal:
    """Time until the last of them has its place in a full batch, seconds.

    Each class is as likely as its requests are among those that come, but all may well be of one: those
    that were pulled last, or evicted for others.

    Args:
        requests: How many there are.
        model: Their model.
        kind: Of the accelerator.
        state: What was learned.
        may_follow: Classes whose requests, once evicted, let the one that is asked about go first.
    """
    costs: list[tuple[float, float]] = []
    for cls, each in state.arrivals.items():
        entry = state.times.entries.get((cls, kind)) if cls.model == model else None
        if entry is None:
            continue
        weight, request_s = each.count + 1, entry.times.request_s
        follows = weight * EVICTED_SHARE if may_follow(cls) else 0.0
        costs += [(weight - follows, request_s), (follows, 0.0)]
    total = sum(weight for weight, _ in costs)
    if not total:
        return NOTHING
    mean_s = sum(weight * request_s for weight, request_s in costs) / total
    square = sum(weight * request_s**2 for weight, request_s in costs) / total
    return Normal(requests * mean_s, requests * square + requests**2 * (square - mean_s**2))
