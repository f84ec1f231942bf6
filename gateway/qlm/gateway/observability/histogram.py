"""Histograms of the gateway, shown as those of prometheus_client, but with observations that cost little."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from math import inf

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Observed:
    """Values observed under one set of labels.

    Attributes:
        created_s: When its first value came, seconds since the epoch.
        sum: Their sum.
        counts: Number of values by bucket, each above the bound before.
    """

    __slots__ = ("_bounds", "counts", "created_s", "sum")

    def __init__(self, bounds: Sequence[float], created_s: float) -> None:
        """Begin without values; the last bound is infinite."""
        self.created_s = created_s
        self.sum = 0.0
        self.counts = [0] * len(bounds)
        self._bounds = bounds

    def observe(self, value: float) -> None:
        """Add a value."""
        # prometheus_client takes nine calls and two locks for this; the gateway observes in one thread.
        self.sum += value
        self.counts[bisect_left(self._bounds, value)] += 1


class LabelledHistogram(Collector):
    """A histogram by labels; `labels` returns that of some values of them, made once."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        about: str,
        labels: Sequence[str],
        *,
        buckets: Sequence[float],
    ) -> None:
        """Register it; `buckets` are the finite upper bounds, from 0 up and ascending."""
        self._name = name
        self._about = about
        self._labels = tuple(labels)
        self._bounds = (*map(float, buckets), inf)
        self._observed: dict[tuple[str, ...], Observed] = {}
        self.labels = cache(self._make)
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return the metric without values."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Return the metric."""
        metric, shows_created = self._family(), _shows_created()
        for values, observed in self._observed.copy().items():
            labels = dict(zip(self._labels, values, strict=True))
            total = 0
            for bound, count in zip(self._bounds, observed.counts, strict=True):
                total += count
                metric.add_sample(f"{self._name}_bucket", labels | {"le": _shown(bound)}, total)
            metric.add_sample(f"{self._name}_count", labels, total)
            metric.add_sample(f"{self._name}_sum", labels, observed.sum)
            if shows_created:
                metric.add_sample(f"{self._name}_created", labels, observed.created_s)
        yield metric

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._about, labels=self._labels)

    def _make(self, *values: str) -> Observed:
        observed = self._observed[values] = Observed(self._bounds, time.time())
        return observed


@cache
def _shows_created() -> bool:
    """Return whether prometheus_client shows when a metric was created, which its users may switch off."""
    (metric,) = Histogram("any", "any", registry=None).collect()
    return any(sample.name.endswith("_created") for sample in metric.samples)


def _shown(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text
