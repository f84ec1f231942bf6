"""Requests that have missed their objective since the last decision about the placement."""

from collections.abc import Mapping
from typing import Final

from qlm.controller.core.estimating.state import EstimatorState
from qlm.domain.group import RequestClass
from qlm.domain.view import ClusterView

FORGOTTEN_MAX: Final = 1024
"""Most late classes remembered that the estimator has forgotten: their counts go on when they come back."""


def late_requests(view: ClusterView, estimator: EstimatorState) -> dict[RequestClass, int]:
    """Return the requests of each late class that missed their objective so far.

    A class without requests leaves the view, but stays known.
    """
    late = {cls: known.accepted - known.kept for cls, known in estimator.arrivals.items() if cls.late}
    return late | {each.cls: each.accepted - each.kept for each in view.classes if each.cls.late}


def lost_since(before: Mapping[RequestClass, int], now: Mapping[RequestClass, int]) -> int:
    """Return the growth of the counts; one that has fallen counts from there on, as of an emptied store."""
    return sum(max(0, count - before.get(cls, 0)) for cls, count in now.items())


def counted(before: Mapping[RequestClass, int], now: Mapping[RequestClass, int]) -> dict[RequestClass, int]:
    """Return the counts now, and the last ones of classes that are forgotten."""
    forgotten = [item for item in before.items() if item[0] not in now]
    return dict(forgotten[-FORGOTTEN_MAX:]) | dict(now)
