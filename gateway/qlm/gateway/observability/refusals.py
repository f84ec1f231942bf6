"""Metrics and spans of refused requests."""

import contextlib
from collections.abc import Iterator

from qlm.domain.errors import QlmError
from qlm.domain.ports.clock import Clock
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.observability.metrics import GatewayMetrics
from qlm.gateway.observability.tracing import Attempt, RequestSpans


@contextlib.contextmanager
def refusals_recorded(
    attempt: Attempt, metrics: GatewayMetrics, spans: RequestSpans, clock: Clock
) -> Iterator[None]:
    """Count a request that is refused for now (429 or 503), and trace one that is refused for any reason."""
    with spans.attempting(attempt, clock):
        try:
            yield
        except (ApiError, QlmError) as error:
            refusal = from_qlm(error) if isinstance(error, QlmError) else error
            if refusal.status in (429, 503):
                metrics.refused(refusal.status, refusal.code or "")
            spans.refused(attempt, refusal, clock.now_ns())
            raise
