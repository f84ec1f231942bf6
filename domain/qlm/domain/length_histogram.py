"""Histograms of prompt and answer lengths: kept by the store for each class, input of the estimator."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.outcome import Outcome

LENGTH_EDGES: Final[tuple[int, ...]] = (*range(8), *(round(8 * 2 ** (k / 4)) for k in range(14 * 4 + 1)))
"""Bin edges, tokens: bin j is (edge j, edge j + 1], a quarter octave wide from 8 on."""

LENGTH_BINS: Final = len(LENGTH_EDGES) - 1
"""Number of bins; the last one also counts all that is longer."""

NO_PROMPTS: Final = (0,) * LENGTH_BINS
"""Counts of prompts by bin, without any."""


_TABLE_TOKENS: Final = 4096
"""Most tokens of a length whose bin is looked up in a table: each heartbeat asks for that of every answer."""


def length_bin(tokens: int) -> int:
    """Return the bin of a length of 1 or more tokens."""
    return _BIN_OF[tokens] if tokens <= _TABLE_TOKENS else _search(tokens)


def binned(lengths: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """Return each bin with lengths of 1 or more tokens in it, how many, and the sum of their tokens."""
    rising, counts, done = sorted(lengths), list[tuple[int, int, int]](), 0
    while done < len(rising):
        at = length_bin(rising[done])
        until = len(rising) if at == LENGTH_BINS - 1 else bisect_right(rising, LENGTH_EDGES[at + 1], done)
        counts.append((at, until - done, sum(rising[done:until])))
        done = until
    return tuple(counts)


def _search(tokens: int) -> int:
    return min(bisect_left(LENGTH_EDGES, tokens) - 1, LENGTH_BINS - 1)


_BIN_OF: Final = tuple(map(_search, range(_TABLE_TOKENS + 1)))


def is_complete(outcome: Outcome) -> bool:
    """Return True if the model ended its answer; the length of others is a lower bound (censored)."""
    return outcome is Outcome.STOP


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Lengths of a class's latest answers; each attribute has `LENGTH_BINS` whole numbers.

    Attributes:
        ended: Complete answers per bin.
        ended_tokens: Sum of their tokens.
        cut_off: Incomplete answers per bin of their length so far: stopped by `max_tokens`, cancelled, lost.
        cut_off_tokens: Sum of their tokens.
    """

    ended: tuple[int, ...] = (0,) * LENGTH_BINS
    ended_tokens: tuple[int, ...] = (0,) * LENGTH_BINS
    cut_off: tuple[int, ...] = (0,) * LENGTH_BINS
    cut_off_tokens: tuple[int, ...] = (0,) * LENGTH_BINS

    def __post_init__(self) -> None:
        for name in ("ended", "ended_tokens", "cut_off", "cut_off_tokens"):
            if len(getattr(self, name)) != LENGTH_BINS:
                raise InvalidValueError(f"lengths.{name}", getattr(self, name), f"{LENGTH_BINS} numbers")

    @property
    def answers(self) -> int:
        """Number of answers."""
        return sum(self.ended) + sum(self.cut_off)

    @property
    def tokens(self) -> int:
        """Sum of their tokens."""
        return sum(self.ended_tokens) + sum(self.cut_off_tokens)

    def with_open(self, counts: Iterable[tuple[int, int, int]]) -> "LengthHistogram":
        """Add unfinished answers as cut-off ones; `counts` has bin, answers and tokens so far."""
        # Short answers end first, so finished answers alone are biased where many run at once (Kaplan and
        # Meier, Nonparametric estimation from incomplete observations, 1958).
        cut_off, tokens = list(self.cut_off), list(self.cut_off_tokens)
        for at, answers, so_far in counts:
            cut_off[at] += answers
            tokens[at] += so_far
        return replace(self, cut_off=tuple(cut_off), cut_off_tokens=tuple(tokens))


NO_LENGTHS: Final = LengthHistogram()
"""Histogram without answers."""
