"""Metrics of webhooks."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from qlm.domain.ports.outbox import OutboxState


class WebhookMetrics:
    """Attempts of this gateway, and the outbox of the deployment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = cache(
            Counter(
                "qlm_gateway_webhook_attempts",
                "Attempts to send an event, by result: delivered, failed, gone; and given_up events",
                ("endpoint", "result"),
                registry=registry,
            ).labels
        )
        self._waiting = Gauge(
            "qlm_gateway_webhook_events_waiting",
            "Events in the deployment that some endpoint has not got yet",
            registry=registry,
        )
        self._dropped = Gauge(
            "qlm_gateway_webhook_events_dropped",
            "Events in the deployment that were dropped because too many waited",
            registry=registry,
        )

    def attempted(self, endpoint: str, result: str) -> None:
        """Count an attempt, or an event that was given up."""
        self._attempts(endpoint, result).inc()

    def outbox(self, state: OutboxState) -> None:
        """Show the outbox."""
        self._waiting.set(state.waiting)
        self._dropped.set(state.dropped)
