"""Metrics of readers: how long they waited for the tokens of streams, how often, and what that was worth."""

from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from qlm.domain.streaming.experience import qoe_star
from qlm.domain.streaming.timeline import Timeline

_IDLE_BUCKETS_S: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 60)
_QOE_BUCKETS: Final = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
_LABELS: Final = ("model", "slo_class")


class ReadingMetrics:
    """Histograms and counters of the readers that objectives describe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._idle_s = cache(
            Histogram(
                "qlm_gateway_request_idle_seconds",
                "Time that the reader of an answer waited for tokens beyond its objective",
                _LABELS,
                registry=registry,
                buckets=_IDLE_BUCKETS_S,
            ).labels
        )
        self._stalls = cache(
            Counter(
                "qlm_gateway_request_stalls",
                "Pauses of readers after the first token",
                _LABELS,
                registry=registry,
            ).labels
        )
        self._qoe = cache(
            Histogram(
                "qlm_gateway_request_qoe_ratio",
                "Quality of experience of the readers of answers (QoE*), from 0 to 1",
                _LABELS,
                registry=registry,
                buckets=_QOE_BUCKETS,
            ).labels
        )

    def ended(self, timeline: Timeline, model: str, slo_class: str) -> None:
        """Observe an answered request."""
        self._idle_s(model, slo_class).observe(timeline.late_s)
        self._stalls(model, slo_class).inc(timeline.stalls)
        self._qoe(model, slo_class).observe(qoe_star(timeline))
