"""Forecasts for agents of the classes on their instance: service times and expected arrivals."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.plan_change import SetForecasts
from qlm.domain.view import ClusterView
from qlm.domain.virtual_queue import ClassForecast
from qlm.rct_estimator.correction import Correction

CHANGED_SHARE: Final = 0.1
"""Change of a figure that is sent to agents, as a share: smaller ones decide nothing."""

FULL: Final = 0.7
"""Load up to which an instance serves the arrivals of a model in time, whatever bursts come."""

CHANGED_RPS: Final = 0.02
"""Smallest change of a rate that is sent to agents."""


def forecast_changes(view: ClusterView, snapshot: Snapshot) -> Iterator[SetForecasts]:
    """Yield the forecasts of each instance that differ from those it has."""
    known = {queue.instance: queue.forecasts for queue in view.queues}
    residents, equal = Residents(snapshot), _Known()
    for id in snapshot.instances:
        forecasts = tuple(_forecasts(snapshot, id, residents, equal))
        if _differ(known.get(id, ()), forecasts):
            yield SetForecasts(instance=id, forecasts=forecasts)


_Known = dict[tuple[RequestClass, str, float, float], ClassForecast]
"""Forecasts by class, kind, speed correction and share of the arrivals: most instances share them."""


def _forecasts(
    snapshot: Snapshot, id: InstanceId, residents: "Residents", known: _Known
) -> Iterator[ClassForecast]:
    instance = snapshot.instances[id]
    kind = instance.status.accelerator
    for (cls, of_kind), entry in snapshot.state.times.entries.items():
        if of_kind != kind or cls.model not in instance.status.models:
            continue
        own = instance.correction if cls.model == instance.loaded else None
        factor = (own or snapshot.pooled.get((cls.model, kind)) or Correction()).factor
        share = residents.share(cls.model, instance)
        key = cls, kind, factor, share
        forecast = known.get(key)
        if forecast is None:
            forecast = known[key] = ClassForecast(
                cls=cls,
                service_s=entry.times.request_s * factor,
                answer_s=entry.answer.mean * factor,
                rate_rps=_rate_rps(snapshot, cls) * share,
            )
        yield forecast


class Residents:
    """Instances on whose presence the arrivals of each model depend.

    Of several instances with a model awake, those that can serve all of its arrivals share them. The others
    are free to leave it. An instance that could load the model gets what these cannot serve; if it is loaded
    nowhere, those have all of it whose queue it waits in.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._work = _work(snapshot)
        self._loaded: dict[ModelId, list[InstanceSnapshot]] = {}
        self._waits = {
            id: frozenset(group.cls.model for group in each.queue) for id, each in snapshot.instances.items()
        }
        self._awaited = Counter(model for models in self._waits.values() for model in models)
        for each in snapshot.instances.values():
            if each.loaded is not None:
                self._loaded.setdefault(each.loaded, []).append(each)
        self._unserved = {
            model: max(0.0, 1 - sum(self._capacity(model, each) for each in of))
            for model, of in self._loaded.items()
        }
        self._needed = {model: self._keepers(model, of) for model, of in self._loaded.items()}

    def share(self, model: ModelId, instance: InstanceSnapshot) -> float:
        """Return the share of a model's arrivals that an instance would have to serve."""
        keepers = self._needed.get(model)
        if keepers is None and not self._awaited[model]:
            return 1 / self._snapshot.serving.get(model, 1)
        if keepers is None:
            return (model in self._waits[instance.status.id]) / self._awaited[model]
        if instance.loaded == model:
            return 1 / len(keepers) if instance.status.id in keepers else 0.0
        return self._unserved[model]

    def _keepers(self, model: ModelId, loaded: Iterable[InstanceSnapshot]) -> frozenset[InstanceId]:
        """Return the fewest of these that can serve all arrivals, busy ones first."""
        keepers, served = set[InstanceId](), 0.0
        for each in sorted(loaded, key=lambda each: (not each.status.running, each.status.id)):
            if served >= 1:
                break
            keepers.add(each.status.id)
            served += self._capacity(model, each)
        return frozenset(keepers)

    def _capacity(self, model: ModelId, instance: InstanceSnapshot) -> float:
        """Return the share of a model's arrivals that an instance can serve."""
        work = self._work.get((model, instance.status.accelerator), 0.0)
        return FULL / work if work else float("inf")


def _work(snapshot: Snapshot) -> Mapping[tuple[ModelId, str], float]:
    """Return the time per second that all arrivals of a model take on one instance of a kind."""
    work: dict[tuple[ModelId, str], float] = {}
    for (cls, kind), entry in snapshot.state.times.entries.items():
        key = cls.model, kind
        work[key] = work.get(key, 0.0) + _rate_rps(snapshot, cls) * entry.times.request_s
    return work


def _rate_rps(snapshot: Snapshot, cls: RequestClass) -> float:
    arrivals = snapshot.state.arrivals.get(cls)
    return arrivals.accepted_rps if arrivals else 0.0


def _differ(before: tuple[ClassForecast, ...], after: tuple[ClassForecast, ...]) -> bool:
    """Return True if a class came or went, or a figure changed by more than its tolerance."""
    if [each.cls for each in before] == [each.cls for each in after]:
        return any(map(_moved, before, after))
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
