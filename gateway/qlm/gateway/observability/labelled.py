"""What the gateway's metrics by labels have in common: they are made once for each set of values."""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector

M = TypeVar("M", bound=Metric)
V = TypeVar("V")


class Labelled(Collector, Generic[M, V]):
    """A metric by labels; `labels` returns what is under some values of them, made once."""

    def __init__(self, registry: CollectorRegistry, name: str, about: str, labels: Sequence[str]) -> None:
        """Register it."""
        self._name = name
        self._about = about
        self._labels = tuple(labels)
        self._made: dict[tuple[str, ...], V] = {}
        self.labels = cache(self._make)
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return the metric without values."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """Return the metric."""
        metric, shows_created = self._family(), _shows_created()
        for values, made in self._made.copy().items():
            self._add(metric, values, made, shows_created=shows_created)
        yield metric

    @abstractmethod
    def _family(self) -> M: ...

    @abstractmethod
    def _new(self, created_s: float) -> V: ...

    @abstractmethod
    def _add(self, metric: M, values: tuple[str, ...], made: V, *, shows_created: bool) -> None: ...

    def _make(self, *values: str) -> V:
        made = self._made[values] = self._new(time.time())
        return made


@cache
def _shows_created() -> bool:
    """Return whether prometheus_client shows when a metric was created, which its users may switch off."""
    (metric,) = Counter("any", "any", registry=None).collect()
    return any(sample.name.endswith("_created") for sample in metric.samples)
