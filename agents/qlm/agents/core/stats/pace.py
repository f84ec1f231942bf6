"""Measured speed of the engine: service time of requests, and time until their objective is met."""

from dataclasses import replace
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.domain.group import RequestClass
from qlm.domain.urgency import lead_time_s
from qlm.domain.values import value

_WEIGHT_MIN: Final = 0.05
"""Minimum weight of the newest observation: one made twenty requests ago counts a third."""

_PRIOR_COUNT: Final = 3
"""The prior assumes a time of zero, with the weight of this many observations."""


@value(kw_only=False)
class Pace:
    """Recent speed of the engine, exponentially smoothed; zeros until a generation has finished.

    Attributes:
        token_s: Seconds per output token of one request.
        service_s: Seconds from submission to the end of a request.
    """

    token_s: float = 0.0
    service_s: float = 0.0

    def seen(self, *, tokens: int, elapsed_s: float, weight: float = 0.2) -> "Pace":
        """Blend in one finished generation."""
        per_token_s = elapsed_s / max(1, tokens)
        if not self.service_s:
            return Pace(per_token_s, elapsed_s)
        return Pace(
            self.token_s + weight * (per_token_s - self.token_s),
            self.service_s + weight * (elapsed_s - self.service_s),
        )

    def latest_wait_ns(self, deadline_ns: int, tokens_left: int) -> int:
        """Return the time from which a request misses its deadline if it waits for `tokens_left` tokens."""
        wait_s = max(0, tokens_left) * self.token_s
        return deadline_ns - round((wait_s + self.service_s) * 1e9) + 1


class LeadTimes:
    """Mean seconds by class from the start of a request to what its objective is about."""

    def __init__(self) -> None:
        self._mean_s: dict[RequestClass, float] = {}
        self._count: dict[RequestClass, int] = {}

    def seen(self, tracked: TrackedRequest, now_ns: int) -> None:
        """Note a request that just reached what its objective is about."""
        if tracked.generation.count != 1:
            return
        # Demoted requests count too: a class whose requests are all demoted would never learn otherwise.
        cls = tracked.request.cls
        if cls.late:
            cls = replace(cls, late=False)
        took_s = max(0.0, (now_ns - tracked.generation.started_ns) / 1e9)
        count = self._count[cls] = self._count.get(cls, 0) + 1
        before_s = self._mean_s.get(cls, 0.0)
        self._mean_s[cls] = before_s + max(_WEIGHT_MIN, 1 / (count + _PRIOR_COUNT)) * (took_s - before_s)

    def lead_ns(self, cls: RequestClass) -> int:
        """Return the time before its deadline by which a request of a class must start to meet it."""
        takes_s = self._mean_s.get(cls, 0.0)
        return 0 if cls.due_ms is None else round(lead_time_s(cls.due_ms, takes_s) * 1e9)
