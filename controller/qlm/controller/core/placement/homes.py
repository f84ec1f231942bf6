"""The placement as agents see it: the models of each instance."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from qlm.controller.core.estimating.arrivals import present_rates
from qlm.controller.core.estimating.state import EstimatorState
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.plan_change import SetHomes
from qlm.domain.view import ClusterView


def home_changes(
    view: ClusterView,
    homes: Mapping[InstanceId, frozenset[ModelId]] | None,
    estimator: EstimatorState,
    now_ns: int,
) -> Iterator[SetHomes]:
    """Yield the models of each live instance that has others.

    Args:
        view: The cluster.
        homes: The placement. None before the first one: instances keep theirs. Empty without placement: those
            of a controller that had it are taken back.
        estimator: Its arrivals order the models.
        now_ns: The present, nanoseconds since the epoch.
    """
    if homes is None:
        return
    known = {queue.instance: frozenset(queue.homes) for queue in view.queues}
    changed = [
        (each.id, here)
        for each in view.instances
        if (here := homes.get(each.id, frozenset())) != known.get(each.id, frozenset())
    ]
    if not changed:
        return
    arrivals = defaultdict[ModelId, float](float)
    for cls, rate_rps in present_rates(view, now_ns, estimator.arrivals).items():
        arrivals[cls.model] += rate_rps
    for instance, here in changed:
        yield SetHomes(instance=instance, models=tuple(sorted(here, key=lambda m: (-arrivals[m], m))))
