"""Measured speed of engines: service time of requests, and time until their objective is met."""

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

_UNSEEN: Final = (0, 0.0)
"""Number and mean of no observations."""

LONG_ANSWER: Final = 5.0
"""Mean service times in which an answer ends almost always: of exponential ones, one of 150 takes longer."""


@value(kw_only=False)
class Pace:
    """Recent speed of one model's engine, exponentially smoothed; zeros until a generation has finished.

    Attributes:
        token_s: Seconds per output token of one request.
        service_s: Seconds from submission to the end of a request that was never interrupted.
    """

    token_s: float = 0.0
    service_s: float = 0.0

    def seen(self, *, tokens: int, elapsed_s: float, whole: bool = True, weight: float = 0.2) -> "Pace":
        """Blend in one finished generation.

        Args:
            tokens: Output tokens of this generation, without those before a preemption.
            elapsed_s: Its time.
            whole: It generated the answer from the beginning.
            weight: Weight of this observation.
        """
        per_token_s = elapsed_s / max(1, tokens)
        token_s = self.token_s + weight * (per_token_s - self.token_s) if self.token_s else per_token_s
        if not whole:
            return Pace(token_s, self.service_s)
        service_s = self.service_s + weight * (elapsed_s - self.service_s) if self.service_s else elapsed_s
        return Pace(token_s, service_s)

    def longest_wait_s(self, tokens_left: int, age_s: float) -> float:
        """Return how long a wait for the end of an answer may last; infinite before any answer has ended.

        Args:
            tokens_left: Tokens up to the limit of the answer.
            age_s: Time since its start.
        """
        if not self.token_s:
            return float("inf")
        by_limit_s = max(0, tokens_left) * self.token_s
        return min(by_limit_s, max(LONG_ANSWER * self.service_s, age_s)) if self.service_s else by_limit_s

    def latest_wait_ns(self, start_by_ns: int, tokens_left: int, started_ns: int) -> int:
        """Return the time from which a wait for the end of an answer may last beyond a latest start.

        An answer is expected within some service times, or after as long again as it has taken, and at its
        limit at the latest.

        Args:
            start_by_ns: The latest start.
            tokens_left: Tokens up to the limit of the answer.
            started_ns: Its start.
        """
        by_age_ns = (start_by_ns + started_ns) // 2
        if not self.token_s:
            return by_age_ns + 1
        by_limit_ns = start_by_ns - round(max(0, tokens_left) * self.token_s * 1e9)
        if not self.service_s:
            return by_limit_ns + 1
        # The limit of an answer whose client named none is the context, which says nothing of its end.
        by_service_ns = start_by_ns - round(LONG_ANSWER * self.service_s * 1e9)
        return max(by_limit_ns, min(by_service_ns, by_age_ns)) + 1


NO_PACE: Final = Pace()
"""Of a model of which no generation has finished."""


class LeadTimes:
    """Mean seconds by class from the start of a request to what its objective is about."""

    def __init__(self) -> None:
        self._seen: dict[RequestClass, tuple[int, float]] = {}

    def seen(self, tracked: TrackedRequest, now_ns: int) -> None:
        """Note a request that just reached what its objective is about."""
        if tracked.generation.count != 1 or tracked.resumed_at:
            return
        # Demoted requests count too: a class whose requests are all demoted would never learn otherwise.
        cls = tracked.request.cls
        if cls.late:
            cls = replace(cls, late=False)
        took_s = max(0.0, (now_ns - tracked.generation.started_ns) / 1e9)
        before, mean_s = self._seen.get(cls, _UNSEEN)
        weight = max(_WEIGHT_MIN, 1 / (before + 1 + _PRIOR_COUNT))
        self._seen[cls] = before + 1, mean_s + weight * (took_s - mean_s)

    def takes_s(self, cls: RequestClass) -> float:
        """Return the mean time from the start of a request of a class; 0 until one was seen."""
        return self._seen.get(cls, _UNSEEN)[1]

    def lead_ns(self, cls: RequestClass, ratio: float = 1.0) -> int:
        """Return the time before its deadline by which a request of a class must start to meet it.

        Args:
            cls: The class.
            ratio: By what to multiply it (`DemotionRuns.lead_ratio`).
        """
        takes_s = ratio * self.takes_s(cls)
        return 0 if cls.due_ms is None else round(lead_time_s(cls.due_ms, takes_s) * 1e9)
