"""Metrics of gateway workers, added to those of the process whose listener exports them.

A counter keeps what workers counted that have ended since.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a sample."""

Families = Mapping[str, tuple[str, str, Mapping[Series, float]]]
"""Kind, description and samples of each metric."""

_ADDED: Final = ("qlm_gateway_", "qlm_faults", "qlm_broker_errors", "qlm_store_errors")
"""Beginnings of the names of metrics that add up; the others are of one process."""

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
        if family.name.startswith(_ADDED)
    }


class WorkerTotals(CollectorRegistry):
    """Registry of a process, whose metrics include those of its workers."""

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, Families] = {}
        self._former: defaultdict[str, defaultdict[Series, float]] = defaultdict(lambda: defaultdict(float))

    def put(self, worker: int, families: Families) -> None:
        """Take the present metrics of a worker."""
        self._live[worker] = families

    def ended(self, worker: int) -> None:
        """Keep the counts of a worker that has ended."""
        for name, (kind, _, samples) in self._live.pop(worker, {}).items():
            if kind in _KEPT:
                for series, number in samples.items():
                    self._former[name][series] += number

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this process and its workers."""
        for family in super().collect():
            yield self._added(family) if family.name.startswith(_ADDED) else family

    def _added(self, family: Metric) -> Metric:
        totals: defaultdict[Series, float] = defaultdict(float)
        own = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in family.samples}
        for samples in (own, self._former.get(family.name, {}), *self._samples(family.name)):
            for series, number in samples.items():
                totals[series] += number
        made = Metric(family.name, family.documentation, family.type)
        made.samples = [Sample(name, dict(labels), number) for (name, labels), number in totals.items()]
        return made

    def _samples(self, name: str) -> Iterable[Mapping[Series, float]]:
        return (families[name][2] for families in self._live.values() if name in families)
