"""Counters and levels of the gateway, shown as those of prometheus_client, but at little cost per count."""

import time
from collections.abc import Iterator, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Count:
    """A number under one set of labels that only grows.

    Attributes:
        value: The number.
        created_s: When it was first asked for, seconds since the epoch.
    """

    __slots__ = ("created_s", "value")

    def __init__(self, created_s: float) -> None:
        """Begin with 0."""
        self.created_s = created_s
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Add an amount."""
        # prometheus_client takes four calls and a lock for this; the gateway counts in one thread.
        self.value += amount


class LabelledCounter(Collector):
    """A counter by labels; `labels` returns that of some values of them, made once."""

    def __init__(self, registry: CollectorRegistry, name: str, about: str, labels: Sequence[str]) -> None:
        """Register it."""
        self._name = name
        self._about = about
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], Count] = {}
        self.labels = cache(self._make)
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return the metric without values."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Return the metric."""
        metric, shows_created = self._family(), _shows_created()
        for values, count in self._counts.copy().items():
            created_s = count.created_s if shows_created else None
            metric.add_metric(values, count.value, created=created_s)
        yield metric

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._about, labels=self._labels)

    def _make(self, *values: str) -> Count:
        count = self._counts[values] = Count(time.time())
        return count


class Level:
    """Number of things that are open."""

    __slots__ = ("_value",)

    def __init__(self, registry: CollectorRegistry, name: str, about: str) -> None:
        """Register it, at 0."""
        self._value = 0
        Gauge(name, about, registry=registry).set_function(self._read)

    def inc(self) -> None:
        """Count one that has opened."""
        self._value += 1

    def dec(self) -> None:
        """Count one that has closed."""
        self._value -= 1

    def _read(self) -> float:
        return self._value


@cache
def _shows_created() -> bool:
    """Return whether prometheus_client shows when a metric was created, which its users may switch off."""
    (metric,) = Counter("any", "any", registry=None).collect()
    return any(sample.name.endswith("_created") for sample in metric.samples)
