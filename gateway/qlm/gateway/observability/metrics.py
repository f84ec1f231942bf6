"""The gateway's metrics. Label values are bounded: models are configured ones."""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qlm.domain.attainment import OutputTimes
from qlm.domain.metric_labels import CLASS_LABEL, LATENCY_BUCKETS_S, ClassLabels
from qlm.domain.request import RequestMetadata
from qlm.gateway.core.forecast import ExpectedTimes
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.observability.counts import Count, LabelledCounter, Level
from qlm.gateway.observability.histogram import LabelledHistogram, Observed
from qlm.gateway.observability.reading import ReadingMetrics
from qlm.gateway.observability.webhooks import WebhookMetrics

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_ACCEPT_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TOKEN_BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_RATIO_BUCKETS: Final = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 10)
_LABELS: Final = ("model", CLASS_LABEL)
_NS_PER_S: Final = 1e9


class GatewayMetrics:
    """Counters and histograms of one gateway."""

    def __init__(self, classes_max: int, registry: CollectorRegistry | None = None) -> None:
        """Register the metrics; objectives beyond `classes_max` share the label `other`."""
        self.registry = registry = registry or CollectorRegistry()
        self._labels = ClassLabels(classes_max)
        histogram = partial(_histogram, registry)
        counter = partial(_counter, registry)
        gauge = partial(Gauge, registry=registry)
        self._requests = counter(
            "qlm_gateway_requests", "Requests that this gateway saw end, by outcome", (*_LABELS, "outcome")
        )
        self._accepted = counter(
            "qlm_gateway_accepted",
            "Requests accepted, by kind of answer: stream, whole, async",
            (*_LABELS, "kind"),
        )
        self._refused = counter(
            "qlm_gateway_refused", "Requests and connections refused, by reason", ("status", "reason")
        )
        self._accept_s = histogram(
            "qlm_gateway_accept_seconds",
            "From a request's arrival until it is durably queued",
            ("model",),
            buckets=_ACCEPT_BUCKETS_S,
        )
        self._first_token_s = histogram(
            "qlm_gateway_time_to_first_token_seconds",
            "From arrival to first output token",
            _LABELS,
            buckets=LATENCY_BUCKETS_S,
        )
        self._answer_s = histogram(
            "qlm_gateway_e2e_request_latency_seconds",
            "From arrival to the end of the answer",
            _LABELS,
            buckets=LATENCY_BUCKETS_S,
        )
        self._make_predictions(registry)
        self._reading = ReadingMetrics(registry)
        self.webhooks = WebhookMetrics(registry)
        self._attained = counter(
            "qlm_gateway_request_slo_attained", "Requests whose objective was met", _LABELS
        )
        self._violated = counter(
            "qlm_gateway_request_slo_violation",
            "Requests whose objective was missed, those that ended badly included, cancelled ones not",
            _LABELS,
        )
        self._tokens = counter(
            "qlm_gateway_tokens", "Tokens, by side: prompt or completion", ("model", "side")
        )
        self.open_streams = Level(registry, "qlm_gateway_open_streams", "Answers being streamed")
        self.sessions = Level(registry, "qlm_gateway_open_requests", "Requests that this gateway watches")
        self.unprotected_listeners = gauge(
            "qlm_gateway_unprotected_listeners",
            "Listeners beyond loopback that nothing is known to protect",
        )
        self._dead_letters = gauge(
            "qlm_gateway_dead_letters",
            "Dead letters in the cluster; NaN while the queue does not answer",
        )

    def _make_predictions(self, registry: CollectorRegistry) -> None:
        histogram = partial(_histogram, registry)
        self._predicted_first_token_s = histogram(
            "qlm_gateway_request_predicted_ttft_seconds",
            "From arrival to first output token, as forecast on arrival",
            _LABELS,
            buckets=LATENCY_BUCKETS_S,
        )
        self._predicted_token_s = histogram(
            "qlm_gateway_request_predicted_tpot_seconds",
            "Time per output token, as forecast on arrival",
            _LABELS,
            buckets=_TOKEN_BUCKETS_S,
        )
        self._predicted_answer_s = histogram(
            "qlm_gateway_request_predicted_e2e_seconds",
            "From arrival to the end of the answer, as forecast on arrival",
            _LABELS,
            buckets=LATENCY_BUCKETS_S,
        )
        self._against_predicted = histogram(
            "qlm_gateway_request_e2e_to_predicted_ratio",
            "Time to the end of an answer as a multiple of its forecast on arrival",
            _LABELS,
            buckets=_RATIO_BUCKETS,
        )

    def dead_letters(self, count: int | None) -> None:
        """Set the number of dead letters; None (the queue does not answer) is exposed as NaN."""
        self._dead_letters.set(math.nan if count is None else count)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def accepted(self, metadata: RequestMetadata, kind: str, seconds: float) -> None:
        """Count a request that was queued."""
        model, slo_class = self._label(metadata)
        self._accepted(model, slo_class, kind).inc()
        self._accept_s(model).observe(seconds)
        self._tokens(model, "prompt").inc(metadata.prompt_tokens)
        if metadata.slo.target_ms is not None:
            # Create both series: otherwise the ratio of a class that meets all, or misses all, is undefined.
            for judged in (self._attained, self._violated):
                judged(model, slo_class)

    def predicted(self, metadata: RequestMetadata, expected: ExpectedTimes) -> None:
        """Observe the forecast of a request that was queued."""
        labels = self._label(metadata)
        self._predicted_first_token_s(*labels).observe(max(0.0, expected.first_token.mean))
        self._predicted_token_s(*labels).observe(expected.token_s)
        self._predicted_answer_s(*labels).observe(max(0.0, expected.completion.mean))

    def refused(self, status: int, reason: str) -> None:
        """Count a request that was not queued, or a connection that was not accepted."""
        self._refused(str(status), reason).inc()

    def ended(
        self,
        metadata: RequestMetadata,
        final: SendFinal,
        times: OutputTimes,
        now_ns: int,
        predicted_s: float | None = None,
    ) -> None:
        """Count the end of a request."""
        labels = self._label(metadata)
        self._requests(*labels, str(final.outcome)).inc()
        self._tokens(labels[0], "completion").inc(final.offset)
        if times.first_ns is not None:
            self._first_token_s(*labels).observe((times.first_ns - metadata.arrival_ns) / _NS_PER_S)
        if final.outcome.ok:
            took_s = (now_ns - metadata.arrival_ns) / _NS_PER_S
            self._answer_s(*labels).observe(took_s)
            if predicted_s is not None and predicted_s > 0:
                self._against_predicted(*labels).observe(took_s / predicted_s)
        if final.attainment.met is not None:
            (self._attained if final.attainment.met else self._violated)(*labels).inc()
        if times.timeline is not None and final.outcome.ok:
            self._reading.ended(times.timeline, *labels)

    def cancelled(self, metadata: RequestMetadata) -> None:
        """Count a request that was cancelled because its client disconnected."""
        self._requests(*self._label(metadata), "cancelled").inc()

    def _label(self, metadata: RequestMetadata) -> tuple[str, str]:
        return self._labels.of(metadata.cls)


def _counter(
    registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...]
) -> Callable[..., Count]:
    """Return a counter as a cached function of its label values."""
    return LabelledCounter(registry, name, about, labels).labels


def _histogram(
    registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...], *, buckets: tuple[float, ...]
) -> Callable[..., Observed]:
    """Return a histogram as a cached function of its label values."""
    return LabelledHistogram(registry, name, about, labels, buckets=buckets).labels
