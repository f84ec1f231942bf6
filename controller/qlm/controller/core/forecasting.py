"""What agents need to know of the classes on their instance: service times and expected arrivals."""

from collections.abc import Iterator, Mapping
from typing import Final

from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.plan_change import SetForecasts
from qlm.domain.view import ClusterView
from qlm.domain.virtual_queue import ClassForecast
from qlm.rct_estimator.correction import Correction

CHANGED_SHARE: Final = 0.1
"""Change of a figure that is sent to agents, as a share: smaller ones decide nothing."""

CHANGED_RPS: Final = 0.02
"""Smallest change of a rate that is sent to agents."""


def forecast_changes(view: ClusterView, snapshot: Snapshot) -> Iterator[SetForecasts]:
    """Yield the forecasts of each instance that differ from those it has."""
    known = {queue.instance: queue.forecasts for queue in view.queues}
    shares, equal = _shares(snapshot), _Known()
    for id in snapshot.instances:
        forecasts = tuple(_forecasts(snapshot, id, shares, equal))
        if _differ(known.get(id, ()), forecasts):
            yield SetForecasts(instance=id, forecasts=forecasts)


def _shares(snapshot: Snapshot) -> Mapping[ModelId, int]:
    """Return the number of instances over which the arrivals of each model spread."""
    loaded: dict[ModelId, int] = {}
    for each in snapshot.instances.values():
        if each.loaded is not None:
            loaded[each.loaded] = loaded.get(each.loaded, 0) + 1
    return {model: loaded.get(model) or count for model, count in snapshot.serving.items()}


_Known = dict[tuple[RequestClass, str, float], ClassForecast]
"""Forecasts by class, kind and speed correction: most instances share them."""


def _forecasts(
    snapshot: Snapshot, id: InstanceId, shares: Mapping[ModelId, int], known: _Known
) -> Iterator[ClassForecast]:
    instance = snapshot.instances[id]
    kind = instance.status.accelerator
    for (cls, of_kind), entry in snapshot.state.times.entries.items():
        if of_kind != kind or cls.model not in instance.status.models:
            continue
        own = instance.correction if cls.model == instance.loaded else None
        factor = (own or snapshot.pooled.get((cls.model, kind)) or Correction()).factor
        if (cls, kind, factor) not in known:
            known[cls, kind, factor] = ClassForecast(
                cls=cls,
                service_s=entry.times.request_s * factor,
                answer_s=entry.answer.mean * factor,
                rate_rps=_rate_rps(snapshot, cls) / shares.get(cls.model, 1),
            )
        yield known[cls, kind, factor]


def _rate_rps(snapshot: Snapshot, cls: RequestClass) -> float:
    arrivals = snapshot.state.arrivals.get(cls)
    return arrivals.accepted_rps if arrivals else 0.0


def _differ(before: tuple[ClassForecast, ...], after: tuple[ClassForecast, ...]) -> bool:
    """Return True if a class came or went, or a figure changed by more than its tolerance."""
    old = {each.cls: each for each in before}
    if old.keys() != {each.cls for each in after}:
        return True
    return any(_moved(old[each.cls], each) for each in after)


def _moved(old: ClassForecast, new: ClassForecast) -> bool:
    if old is new:
        return False
    times = ((old.service_s, new.service_s), (old.answer_s, new.answer_s))
    if any(abs(b - a) > CHANGED_SHARE * a for a, b in times):
        return True
    return abs(new.rate_rps - old.rate_rps) > max(CHANGED_RPS, CHANGED_SHARE * old.rate_rps)
