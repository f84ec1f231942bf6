"""Placement whose processor time is counted apart from that of plans."""

from collections.abc import Callable

from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.placement.placing import update_placement
from qlm.domain.view import ClusterView
from qlm.planner.placement.policy import PlacementState


class TimedPlacer:
    """A placer. It has a pace of its own, so its time is no reason to plan less often.

    Attributes:
        took_s: Processor time of all calls so far, in their own threads.
    """

    def __init__(self, processor_s: Callable[[], float]) -> None:
        self._processor_s = processor_s
        self.took_s = 0.0

    def __call__(
        self, state: PlacementState, view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
    ) -> PlacementState:
        """Return the placement after a view (`controller.core.placement.placing.update_placement`)."""
        began_s = self._processor_s()
        try:
            return update_placement(state, view, estimator, fleet, now_ns)
        finally:
            self.took_s += self._processor_s() - began_s
