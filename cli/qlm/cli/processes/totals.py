"""Metrics of gateway workers, added to those of the process whose listener exports them.

A counter keeps what workers counted that have ended since.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from qlm.domain.metric_labels import CLASS_LABEL, CLASSES_MAX, OTHER

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""

Families = Mapping[str, tuple[str, str, Mapping[Series, float]]]
"""Kind, description and samples of each metric."""

_ADDED: Final = ("qlm_gateway_", "qlm_faults", "qlm_broker_errors", "qlm_store_errors")
"""Beginnings of the names of metrics that add up; the others are of one process."""

_OF_EACH: Final = frozenset({"qlm_gateway_unprotected_listeners"})
"""Those of them that say the same in each process."""

_KEPT: Final = frozenset({"counter", "histogram"})


def families_of(registry: CollectorRegistry) -> Families:
    """Return the metrics of a worker that add up."""
    return {
        family.name: (
            family.type,
            family.documentation,
            {(each.name, tuple(sorted(each.labels.items()))): each.value for each in family.samples},
        )
        for family in registry.collect()
        if _adds_up(family.name)
    }


def _adds_up(name: str) -> bool:
    return name.startswith(_ADDED) and name not in _OF_EACH


class WorkerTotals(CollectorRegistry):
    """Registry of a process, whose metrics include those of its workers."""

    def __init__(self, classes_max: int = CLASSES_MAX) -> None:
        """Have no workers yet; objectives beyond `classes_max` share the label `other`."""
        super().__init__()
        self._classes_max = classes_max
        self._classes: set[str] = set()
        self._live: dict[int, Families] = {}
        self._former: defaultdict[str, defaultdict[Series, float]] = defaultdict(lambda: defaultdict(float))

    def put(self, worker: int, families: Families) -> None:
        """Take the present metrics of a worker."""
        self._live[worker] = {
            name: (kind, about, self._bounded(samples)) for name, (kind, about, samples) in families.items()
        }

    def ended(self, worker: int) -> None:
        """Keep the counts of a worker that has ended."""
        for name, (kind, _, samples) in self._live.pop(worker, {}).items():
            if kind in _KEPT:
                for series, number in samples.items():
                    self._former[name][series] += number

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this process and its workers."""
        for family in super().collect():
            yield self._added(family) if _adds_up(family.name) else family

    def _added(self, family: Metric) -> Metric:
        totals: defaultdict[Series, float] = defaultdict(float)
        own = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in family.samples}
        for samples in (self._bounded(own), self._former.get(family.name, {}), *self._samples(family.name)):
            for series, number in samples.items():
                totals[series] += number
        made = Metric(family.name, family.documentation, family.type)
        made.samples = [Sample(name, dict(labels), number) for (name, labels), number in totals.items()]
        return made

    def _bounded(self, samples: Mapping[Series, float]) -> Mapping[Series, float]:
        """Return samples with labels for a bounded number of objectives."""
        bounded: defaultdict[Series, float] = defaultdict(float)
        for (name, labels), number in samples.items():
            bounded[name, tuple((key, self._label(key, value)) for key, value in labels)] += number
        return bounded

    def _label(self, key: str, value: str) -> str:
        if key != CLASS_LABEL or value in self._classes or value == OTHER:
            return value
        if len(self._classes) >= self._classes_max:
            return OTHER
        self._classes.add(value)
        return value

    def _samples(self, name: str) -> Iterable[Mapping[Series, float]]:
        return (families[name][2] for families in self._live.values() if name in families)
