"""Histograms of the gateway, shown as those of prometheus_client, but with observations that cost little."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from qlm.gateway.observability.labelled import Labelled


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


class LabelledHistogram(Labelled[HistogramMetricFamily, Observed]):
    """A histogram by labels."""

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
        self._bounds = (*map(float, buckets), inf)
        super().__init__(registry, name, about, labels)

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._about, labels=self._labels)

    def _new(self, created_s: float) -> Observed:
        return Observed(self._bounds, created_s)

    def _add(
        self, metric: HistogramMetricFamily, values: tuple[str, ...], made: Observed, *, shows_created: bool
    ) -> None:
        labels = dict(zip(self._labels, values, strict=True))
        total = 0
        for bound, count in zip(self._bounds, made.counts, strict=True):
            total += count
            metric.add_sample(f"{self._name}_bucket", labels | {"le": _shown(bound)}, total)
        metric.add_sample(f"{self._name}_count", labels, total)
        metric.add_sample(f"{self._name}_sum", labels, made.sum)
        if shows_created:
            metric.add_sample(f"{self._name}_created", labels, made.created_s)


def _shown(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text
