"""The adaptive concurrency limit: the batch size at which requests meet their TPOT target."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.stats.work_meter import WorkMeter
from qlm.domain.group import RequestClass
from qlm.domain.slo import DeadlineSlo, ReadingSlo, Slo, TokenSlo

WINDOW_NS: Final = 4_000_000_000
"""Decay time: a measurement of this age counts a third of a new one."""

PACE_SHARE: Final = 0.85
"""Share of a deadline that a long answer may generate; the rest is for its wait, its prompt and arrivals."""

LEAST_SHARE: Final = 0.5
"""Lower bound of the limit as a share of the batch slots: below it too many tokens per second are lost."""

_WEIGHT_MIN: Final = 0.02
"""Minimum weight of the newest answer's length: one seen fifty answers ago counts a third."""

_BLEND: Final = 0.5
"""Weight of the newest limit against the previous one."""


class AnswerLengths:
    """Lengths of the answers of a class: smoothed mean and variance, and the maximum."""

    __slots__ = ("_count", "_longest", "_mean", "_var")

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._var = 0.0
        self._longest = 0

    def seen(self, tokens: int) -> None:
        """Note the length of a finished answer."""
        self._count += 1
        weight = max(_WEIGHT_MIN, 1 / self._count)
        off = tokens - self._mean
        self._mean += weight * off
        self._var = (1 - weight) * (self._var + weight * off * off)
        self._longest = max(self._longest, tokens)

    @property
    def long_tokens(self) -> float:
        """Output tokens of a long answer: mean plus one standard deviation, at most the maximum."""
        return min(self._longest, self._mean + math.sqrt(self._var))


class Window:
    """Recent work of the engine, as exponentially decaying sums.

    A window is needed since tokens may reach the agent many at a time.

    Attributes:
        elapsed_ns: Time.
        ran_ns: Running time, summed over requests.
        tokens: Output tokens.
    """

    def __init__(self, work: WorkMeter, now_ns: int) -> None:
        self.elapsed_ns = self.ran_ns = self.tokens = 0.0
        self._since = (now_ns, work.request_ns, work.output_tokens)

    def add(self, work: WorkMeter, now_ns: int) -> None:
        """Add the work since the last call."""
        since_ns, request_ns, tokens = self._since
        self._since = (now_ns, work.request_ns, work.output_tokens)
        passed_ns = max(0, now_ns - since_ns)
        left = math.exp(-passed_ns / WINDOW_NS)
        self.elapsed_ns = left * self.elapsed_ns + passed_ns
        self.ran_ns = left * self.ran_ns + work.request_ns - request_ns
        self.tokens = left * self.tokens + work.output_tokens - tokens

    @property
    def ran(self) -> float:
        """Mean number of running requests."""
        return self.ran_ns / self.elapsed_ns

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all requests."""
        return self.tokens / (self.elapsed_ns / 1e9)


class ConcurrencyLimit:
    """Measurements behind the adaptive concurrency limit of one agent.

    Attributes:
        next_update_ns: Time of the next update.
    """

    def __init__(self) -> None:
        self.next_update_ns = 0
        self._lengths: dict[RequestClass, AnswerLengths] = {}
        self._window = Window(WorkMeter(), 0)
        self._limit: float | None = None

    def ended(self, tracked: TrackedRequest) -> None:
        """Note a finished answer."""
        if isinstance(tracked.request.slo, DeadlineSlo):
            cls = tracked.request.cls
            cls = replace(cls, late=False) if cls.late else cls
            lengths = self._lengths.get(cls)
            if lengths is None:
                lengths = self._lengths[cls] = AnswerLengths()
            lengths.seen(len(tracked.output))

    def reset(self, now_ns: int) -> None:
        """Forget the measurements: another engine is awake."""
        self._limit, self._window = None, Window(WorkMeter(), now_ns)

    def target_s(self, running: Iterable[TrackedRequest]) -> float | None:
        """Return the tightest target of the running requests, seconds per output token; None without one."""
        objectives = {
            tracked.request.cls: tracked.request.slo for tracked in running if not tracked.request.cls.late
        }
        targets = (self._target_s(cls, slo) for cls, slo in objectives.items())
        return min((target for target in targets if target is not None), default=None)

    def _target_s(self, cls: RequestClass, slo: Slo) -> float | None:
        match slo:
            case DeadlineSlo():
                tokens = self._lengths[cls].long_tokens if cls in self._lengths else 0
                due_ms = cls.due_ms or slo.deadline_ms
                return PACE_SHARE * due_ms / 1000 / tokens if tokens else None
            case TokenSlo(tpot_ms=tpot_ms):
                return None if tpot_ms is None else tpot_ms / 1000
            case ReadingSlo(tokens_per_s=speed):
                return 1 / speed
            case _:
                return None

    def update(self, work: WorkMeter, target_s: float | None, seqs_max: int, now_ns: int) -> int:
        """Return the new limit, from the engine's work since the last update.

        Args:
            work: Work of the engine since it woke.
            target_s: Target, seconds per output token; None to lift the limit.
            seqs_max: Batch slots of the engine.
            now_ns: The current time.
        """
        self._window.add(work, now_ns)
        if target_s is None:
            self._limit = None
            return seqs_max
        limit = float(seqs_max) if self._limit is None else self._limit
        if self._window.tokens > 0 and self._window.elapsed_ns > 0:
            # At this concurrency the target would have been met exactly, had the throughput been the same.
            ideal = target_s * self._window.tokens_per_s
            limit = _blend(limit, ran=self._window.ran, ideal=ideal)
        self._limit = min(seqs_max, max(LEAST_SHARE * seqs_max, 1.0, limit))
        return round(self._limit)


def _blend(limit: float, *, ran: float, ideal: float) -> float:
    if ideal >= ran:
        # Fast enough: a batch that was not full is no evidence against a larger one.
        return max(limit, limit + _BLEND * (ideal - limit))
    return min(limit, ran) + _BLEND * (ideal - min(limit, ran))
