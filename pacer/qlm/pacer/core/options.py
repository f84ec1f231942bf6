"""Options of a pacer."""

import math
import sys
from dataclasses import dataclass
from typing import Final, Literal

from qlm.domain.errors import InvalidValueError
from qlm.domain.streaming.reader import READING_TOKENS_PER_S, Reader

GRAPHEMES_PER_TOKEN: Final = 4.0
"""A token of English text: about four characters. Other languages have fewer: set it for speech in them."""

LAG_MAX_MS: Final = 300.0
"""Longest that text waits, unless the rate is fixed. Pacers in use have 120 to 450 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerOptions:
    """Options of a pacer.

    Attributes:
        rate: Tokens per second, for speech; "auto" follows the measured rate of arrival.
        max_lag_ms: Longest that a character waits. None: 300 with rate "auto"; no limit with a fixed rate,
            whose listener takes text at that pace however far the model is.
        graphemes_per_token: Characters that count as one token, in `rate` and in the report.
        ttft_ms: When the reader of the report expects the first token, from the request.
        reader_tokens_per_s: Pace of that reader. None: a fixed `rate`, else 4.8 (reading; Andes, table 2).
    """

    rate: float | Literal["auto"] = "auto"
    max_lag_ms: float | None = None
    graphemes_per_token: float = GRAPHEMES_PER_TOKEN
    ttft_ms: float = 1000.0
    reader_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.rate != "auto":
            _check("rate", self.rate, more_than_zero=True, expected='a number above 0, or "auto"')
        if self.max_lag_ms is not None:
            _check("max_lag_ms", self.max_lag_ms, expected="a number of 0 or more")
        _check("graphemes_per_token", self.graphemes_per_token, more_than_zero=True)
        _check("ttft_ms", self.ttft_ms, expected="a number of 0 or more")
        if self.reader_tokens_per_s is not None:
            _check("reader_tokens_per_s", self.reader_tokens_per_s, more_than_zero=True)

    @property
    def fixed_per_ms(self) -> float | None:
        """Graphemes per millisecond of a fixed rate; None if the rate is measured."""
        return None if self.rate == "auto" else self.rate * self.graphemes_per_token / 1000

    @property
    def lag_ms(self) -> float:
        """Longest that a character waits; infinite without a limit."""
        if self.max_lag_ms is not None:
            return self.max_lag_ms
        return LAG_MAX_MS if self.rate == "auto" else math.inf

    @property
    def reader(self) -> Reader:
        """Reader of the report; its tokens are graphemes."""
        tokens_per_s = self.reader_tokens_per_s
        if tokens_per_s is None:
            tokens_per_s = READING_TOKENS_PER_S if self.rate == "auto" else self.rate
        return Reader(self.ttft_ms / 1000, tokens_per_s * self.graphemes_per_token)


def _check(
    field: str, value: object, *, more_than_zero: bool = False, expected: str = "a number above 0"
) -> None:
    valid = False
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= sys.float_info.max:
        valid = value > 0 if more_than_zero else value >= 0
    if not valid:
        raise InvalidValueError(field, value, expected)
