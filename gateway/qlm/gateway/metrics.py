"""The gateway's metrics, in a registry of its own. Label values are bounded: models are configured ones."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from qlm.domain.attainment import attained
from qlm.domain.request import RequestCard
from qlm.gateway.forecast import Expected
from qlm.gateway.session_events import SendFinal

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_ACCEPT_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ANSWER_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600)
_TOKEN_BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_LABELS: Final = ("model", "slo_class")
_NS_PER_S: Final = 1e9


class GatewayMetrics:
    """What one gateway counts and times."""

    def __init__(self, classes_max: int) -> None:
        """Make the metrics.

        Args:
            classes_max: Objectives that get a label of their own; later ones share `other`.
        """
        self.registry = CollectorRegistry()
        self._classes_max = classes_max
        self._labels_of: dict[tuple[str, str], tuple[str, str]] = {}
        self._classes: set[str] = set()
        registry = self.registry
        histogram = partial(_histogram, registry)
        counter = partial(_counter, registry)
        gauge = partial(Gauge, registry=registry)
        self._requests = counter(
            "qlm_gateway_requests", "Requests that ended, by outcome", (*_LABELS, "outcome")
        )
        self._accepted = counter(
            "qlm_gateway_accepted", "Requests accepted, by kind of answer", (*_LABELS, "kind")
        )
        self._refused = counter("qlm_gateway_refused", "Requests refused, by reason", ("status", "reason"))
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
            buckets=_ANSWER_BUCKETS_S,
        )
        self._predicted_first_token_s = histogram(
            "qlm_gateway_request_predicted_ttft_seconds",
            "From arrival to first output token, as forecast on arrival",
            _LABELS,
            buckets=_ANSWER_BUCKETS_S,
        )
        self._predicted_token_s = histogram(
            "qlm_gateway_request_predicted_tpot_seconds",
            "Time per output token, as forecast on arrival",
            _LABELS,
            buckets=_TOKEN_BUCKETS_S,
        )
        self._answer_s = histogram(
            "qlm_gateway_e2e_request_latency_seconds",
            "From arrival to the end of the answer",
            _LABELS,
            buckets=_ANSWER_BUCKETS_S,
        )
        self._attained = counter(
            "qlm_gateway_request_slo_attained", "Requests whose objective was met", _LABELS
        )
        self._violated = counter(
            "qlm_gateway_request_slo_violation",
            "Requests whose objective was missed, those that ended badly included, cancelled ones not",
            _LABELS,
        )
        self._tokens = counter("qlm_gateway_tokens", "Tokens, by side", ("model", "side"))
        self.open_streams = gauge("qlm_gateway_open_streams", "Answers being streamed")
        self.sessions = gauge("qlm_gateway_open_requests", "Requests that this gateway watches")
        self._dead_letters = gauge(
            "qlm_gateway_dead_letters", "Messages in the cluster that nobody can serve"
        )

    def dead_letters(self, count: int | None) -> None:
        """Note how many there are; None, while the queue does not answer, is shown as NaN."""
        self._dead_letters.set(math.nan if count is None else count)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def accepted(self, card: RequestCard, kind: str, seconds: float) -> None:
        """Count a request that was queued."""
        model, slo_class = self._label(card)
        self._accepted(model, slo_class, kind).inc()
        self._accept_s(model).observe(seconds)
        self._tokens(model, "prompt").inc(card.prompt_tokens)

    def predicted(self, card: RequestCard, expected: Expected) -> None:
        """Note what was forecast of a request that was queued."""
        labels = self._label(card)
        self._predicted_first_token_s(*labels).observe(max(0.0, expected.first_token.mean))
        self._predicted_token_s(*labels).observe(expected.token_s)

    def refused(self, status: int, reason: str) -> None:
        """Count a request that was not queued."""
        self._refused(str(status), reason).inc()

    def ended(self, card: RequestCard, final: SendFinal, first_output_ns: int | None, now_ns: int) -> None:
        """Count a request that was answered, or ended otherwise."""
        labels = self._label(card)
        self._requests(*labels, str(final.outcome)).inc()
        self._tokens(labels[0], "completion").inc(final.offset)
        if first_output_ns is not None:
            self._first_token_s(*labels).observe((first_output_ns - card.arrival_ns) / _NS_PER_S)
        if final.outcome.ok:
            self._answer_s(*labels).observe((now_ns - card.arrival_ns) / _NS_PER_S)
        self._judge(card, final, first_output_ns, now_ns, labels)

    def cancelled(self, card: RequestCard) -> None:
        """Count a request whose client went away."""
        self._requests(*self._label(card), "cancelled").inc()

    def _judge(
        self,
        card: RequestCard,
        final: SendFinal,
        first_output_ns: int | None,
        now_ns: int,
        labels: tuple[str, str],
    ) -> None:
        if card.slo.target_ms is None or final.outcome == "cancelled":
            return
        met = final.outcome.ok and attained(
            card, first_output_ns=first_output_ns, ended_ns=now_ns, tokens=final.offset
        )
        (self._attained if met else self._violated)(*labels).inc()

    def _label(self, card: RequestCard) -> tuple[str, str]:
        key = (str(card.model), card.cls.slo)
        if (labels := self._labels_of.get(key)) is not None:
            return labels
        slo_class = key[1]
        if slo_class not in self._classes:
            if len(self._classes) >= self._classes_max:
                return (key[0], "other")
            self._classes.add(slo_class)
        return self._labels_of.setdefault(key, (key[0], slo_class))


def _counter(
    registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...]
) -> Callable[..., Counter]:
    """Make a counter; called with values of its labels, it gives theirs, which take long to look up."""
    return cache(Counter(name, about, labels, registry=registry).labels)


def _histogram(
    registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...], *, buckets: tuple[float, ...]
) -> Callable[..., Histogram]:
    """Make a histogram, likewise."""
    return cache(Histogram(name, about, labels, registry=registry, buckets=buckets).labels)
