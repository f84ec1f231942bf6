"""Service-level objectives on the time of an answer.

Four kinds, one per application pattern: a deadline for the whole answer, first-token and
per-token targets, a first token followed by a reading speed, or none (batch).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError

DEADLINE_MAX_MS: Final = 30 * 24 * 3600 * 1000
"""Longest deadline, TTFT or TPOT accepted: 30 days, in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloGrid:
    """Scale to which objectives are rounded down, so that classes stay few.

    Rounding down makes a class's objective at least as tight as that of each member.

    Attributes:
        steps: Values of the first decade, ascending from 1.
        decades: Decades after which the steps repeat.
        paced: Whether the pace after the first token distinguishes classes too.
    """

    steps: tuple[float, ...]
    decades: int = 1
    paced: bool = True

    def floor(self, value: float) -> float:
        """Round a positive number down to the scale."""
        decade = math.floor(math.log10(value) + 1e-12)
        decade -= decade % self.decades
        mantissa = value / 10.0**decade
        step = max(s for s in self.steps if s <= mantissa * (1 + 1e-12))
        return step * 10.0**decade


STEPS: Final[Mapping[int, tuple[float, ...]]] = {
    1: (1.0,),
    2: (1.0, 3.0),
    3: (1.0, 2.0, 5.0),
    4: (1.0, 2.0, 3.0, 5.0),
    10: (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
}
"""Steps of a decade by their number; most usual objectives are steps themselves."""

FINE_GRID: Final = SloGrid(steps=STEPS[10])
"""The default grid; it reduces an objective by a third at most."""


SPEED: Final = "-speed-"
"""Separates the pace of readers from the rest of a class label, tokens per second."""


class OnMiss(StrEnum):
    """Treatment of a request whose deadline has passed before it was answered."""

    SERVE = "serve"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSlo:
    """Objective: the whole answer within `deadline_ms` of arrival."""

    deadline_ms: float

    def __post_init__(self) -> None:
        check_ms("slo.deadline_ms", self.deadline_ms)

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the deadline."""
        return self.deadline_ms

    def label(self, grid: SloGrid = FINE_GRID) -> str:
        """Return the class label with the deadline on the grid, such as `deadline-15s`."""
        return f"deadline-{_duration(grid.floor(self.deadline_ms))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSlo:
    """Objective: first token within `ttft_ms` of arrival and, if given, `tpot_ms` per token after it."""

    ttft_ms: float
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        check_ms("slo.ttft_ms", self.ttft_ms)
        if self.tpot_ms is not None:
            check_ms("slo.tpot_ms", self.tpot_ms)

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return self.ttft_ms

    def label(self, grid: SloGrid = FINE_GRID) -> str:
        """Return the class label, such as `ttft-400ms` or `ttft-400ms-tpot-40ms`."""
        first = f"ttft-{_duration(grid.floor(self.ttft_ms))}"
        if self.tpot_ms is None or not grid.paced:
            return first
        return f"{first}-tpot-{_duration(grid.floor(self.tpot_ms))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingSlo:
    """Objective: first token within `ttft_ms`, then a stream no slower than `tokens_per_s`."""

    ttft_ms: float
    tokens_per_s: float

    def __post_init__(self) -> None:
        check_ms("slo.ttft_ms", self.ttft_ms)
        check_pace("slo.tokens_per_s", self.tokens_per_s)

    @property
    def target_ms(self) -> float:
        """Milliseconds from arrival to the first token."""
        return self.ttft_ms

    def label(self, grid: SloGrid = FINE_GRID) -> str:
        """Return the class label, such as `ttft-1s-speed-4`."""
        first = f"ttft-{_duration(grid.floor(self.ttft_ms))}"
        return f"{first}{SPEED}{grid.floor(self.tokens_per_s):g}" if grid.paced else first


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSlo:
    """No objective: served when nothing more urgent needs the instance."""

    @property
    def target_ms(self) -> None:
        """None: batch work has no deadline."""
        return None

    def label(self, grid: SloGrid = FINE_GRID) -> str:
        """Return the class label of all work without an objective, on any grid."""
        return "batch"


Slo = DeadlineSlo | TokenSlo | ReadingSlo | BatchSlo


def check_ms(field: str, value: float) -> None:
    """Refuse what is no deadline.

    Raises:
        InvalidValueError: It is not positive, or longer than `DEADLINE_MAX_MS`.
    """
    if not 0 < value <= DEADLINE_MAX_MS:
        raise InvalidValueError(field, value, f"a positive number of milliseconds up to {DEADLINE_MAX_MS}")
    if value < 0.01:
        raise InvalidValueError(field, value, "at least 0.01 milliseconds")


def check_pace(field: str, tokens_per_s: float) -> None:
    """Refuse what is no pace.

    Raises:
        InvalidValueError: It is not a number from 0.01 to 10000.
    """
    if not 0.01 <= tokens_per_s <= 10_000:
        raise InvalidValueError(field, tokens_per_s, "a number of tokens per second from 0.01 to 10000")


def _duration(ms: float) -> str:
    return f"{ms / 1000:g}s" if ms >= 1000 else f"{ms:g}ms"
