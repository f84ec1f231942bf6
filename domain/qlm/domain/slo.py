"""Service-level objectives on the time of an answer.

Four kinds, one per application pattern: a deadline for the whole answer, first-token and
per-token targets, a first token followed by a reading speed, or none (batch).
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError

DEADLINE_MAX_MS: Final = 30 * 24 * 3600 * 1000
"""Longest deadline, TTFT or TPOT accepted: 30 days, in milliseconds."""

BUCKETS: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Steps of a decade to which objectives are rounded down, so that classes stay few.

Most usual objectives are steps themselves; rounding reduces any other by a third at most.
"""


class OnMiss(StrEnum):
    """Treatment of a request whose deadline has passed before it was answered."""

    SERVE = "serve"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSlo:
    """Objective: the whole answer within `deadline_ms` of arrival."""

    deadline_ms: float

    def __post_init__(self) -> None:
        _check_ms("slo.deadline_ms", self.deadline_ms)

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the deadline."""
        return self.deadline_ms

    @property
    def label(self) -> str:
        """Class label with the deadline rounded down to the bucket scale, such as `deadline-16s`."""
        return f"deadline-{_duration(bucket_floor(self.deadline_ms))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSlo:
    """Objective: first token within `ttft_ms` of arrival and, if given, `tpot_ms` per token after it."""

    ttft_ms: float
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        _check_ms("slo.ttft_ms", self.ttft_ms)
        if self.tpot_ms is not None:
            _check_ms("slo.tpot_ms", self.tpot_ms)

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return self.ttft_ms

    @property
    def label(self) -> str:
        """Class label, such as `ttft-400ms` or `ttft-400ms-tpot-40ms`."""
        first = f"ttft-{_duration(bucket_floor(self.ttft_ms))}"
        if self.tpot_ms is None:
            return first
        return f"{first}-tpot-{_duration(bucket_floor(self.tpot_ms))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSlo:
    """Objective: first token within `ttft_ms`, then a stream no slower than `tokens_per_s`."""

    ttft_ms: float
    tokens_per_s: float

    def __post_init__(self) -> None:
        _check_ms("slo.ttft_ms", self.ttft_ms)
        if not (math.isfinite(self.tokens_per_s) and 0.01 <= self.tokens_per_s <= 10_000):
            raise InvalidValueError(
                "slo.tokens_per_s", self.tokens_per_s, "a number of tokens per second from 0.01 to 10000"
            )

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return self.ttft_ms

    @property
    def label(self) -> str:
        """Class label, such as `ttft-1s-speed-4`."""
        speed = f"{bucket_floor(self.tokens_per_s):g}"
        return f"ttft-{_duration(bucket_floor(self.ttft_ms))}-speed-{speed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSlo:
    """No objective: served when nothing more urgent needs the instance."""

    @property
    def target_ms(self) -> None:
        """None: batch work has no deadline."""
        return None

    @property
    def label(self) -> str:
        """Class label of all work without an objective."""
        return "batch"


Slo = DeadlineSlo | TokenSlo | ReadingSlo | BatchSlo


def bucket_floor(value: float) -> float:
    """Round a positive number down to the bucket scale.

    Rounding down makes a class's objective at least as tight as that of each member.
    """
    decade = math.floor(math.log10(value) + 1e-12)
    mantissa = value / 10.0**decade
    step = max(s for s in BUCKETS if s <= mantissa * (1 + 1e-12))
    return step * 10.0**decade


def _check_ms(field: str, value: float) -> None:
    if not (math.isfinite(value) and 0 < value <= DEADLINE_MAX_MS):
        raise InvalidValueError(field, value, f"a positive number of milliseconds up to {DEADLINE_MAX_MS}")
    if value < 0.01:
        raise InvalidValueError(field, value, "at least 0.01 milliseconds")


def _duration(ms: float) -> str:
    return f"{ms / 1000:g}s" if ms >= 1000 else f"{ms:g}ms"
