"""Counters and levels of the gateway, shown as those of prometheus_client, but at little cost per count."""

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily

from qlm.gateway.observability.labelled import Labelled


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


class LabelledCounter(Labelled[CounterMetricFamily, Count]):
    """A counter by labels."""

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._about, labels=self._labels)

    def _new(self, created_s: float) -> Count:
        return Count(created_s)

    def _add(
        self, metric: CounterMetricFamily, values: tuple[str, ...], made: Count, *, shows_created: bool
    ) -> None:
        metric.add_metric(values, made.value, created=made.created_s if shows_created else None)


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
