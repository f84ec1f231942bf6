"""The placement as agents see it: the models of each instance."""

from collections import defaultdict
from collections.abc import Iterator

from qlm.controller.core.estimating.arrivals import present_rates
from qlm.controller.core.estimating.state import EstimatorState
from qlm.domain.ids import ModelId
from qlm.domain.plan_change import SetHomes
from qlm.domain.view import ClusterView
from qlm.planner.placement.policy import PlacementState


def home_changes(
    view: ClusterView, state: PlacementState, estimator: EstimatorState, now_ns: int
) -> Iterator[SetHomes]:
    """Yield the models of each live instance that has others."""
    if state.homes is None:
        return
    known = {queue.instance: frozenset(queue.homes) for queue in view.queues}
    changed = [
        (each.id, homes)
        for each in view.instances
        if (homes := state.homes.get(each.id, frozenset())) != known.get(each.id, frozenset())
    ]
    if not changed:
        return
    arrivals = defaultdict[ModelId, float](float)
    for cls, rate_rps in present_rates(view, now_ns, estimator.arrivals).items():
        arrivals[cls.model] += rate_rps
    for instance, homes in changed:
        yield SetHomes(instance=instance, models=tuple(sorted(homes, key=lambda m: (-arrivals[m], m))))
