"""How long answers were, counted in bins: what the stores keep of a class and the estimator learns from."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.outcome import Outcome

LENGTH_EDGES: Final[tuple[int, ...]] = (*range(8), *(round(8 * 2 ** (k / 4)) for k in range(14 * 4 + 1)))
"""Bounds of the bins of lengths, tokens: bin j is (edge j, edge j + 1], a quarter octave from 8 on."""

LENGTH_BINS: Final = len(LENGTH_EDGES) - 1
"""Number of bins; the last one takes all that is longer, too."""


def length_bin(tokens: int) -> int:
    """Return the bin of a length of 1 or more tokens."""
    return min(bisect_left(LENGTH_EDGES, tokens) - 1, LENGTH_BINS - 1)


def came_to_its_end(outcome: Outcome) -> bool:
    """Whether an answer's length is that of the whole answer; of others it is known that they were longer."""
    return outcome is Outcome.STOP


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """The lengths of a class's latest answers; each attribute has `LENGTH_BINS` whole numbers.

    Attributes:
        ended: Answers of the bin that came to their end.
        ended_tokens: Their tokens together.
        cut_off: Those that did not: stopped by `max_tokens`, cancelled or lost after so many tokens.
        cut_off_tokens: Their tokens together.
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
        """Answers that are counted."""
        return sum(self.ended) + sum(self.cut_off)

    @property
    def tokens(self) -> int:
        """Their tokens together."""
        return sum(self.ended_tokens) + sum(self.cut_off_tokens)

    def with_open(self, counts: Iterable[tuple[int, int, int]]) -> "LengthHistogram":
        """Add answers that have not ended: that they were longer is all that is known, as of those cut off.

        Short answers end first: where many run at once, those that have ended yet are too short (Kaplan and
        Meier, Nonparametric estimation from incomplete observations, 1958).

        Args:
            counts: Bin, answers and their tokens so far.
        """
        cut_off, tokens = list(self.cut_off), list(self.cut_off_tokens)
        for at, answers, so_far in counts:
            cut_off[at] += answers
            tokens[at] += so_far
        return replace(self, cut_off=tuple(cut_off), cut_off_tokens=tuple(tokens))


NO_LENGTHS: Final = LengthHistogram()
"""Nothing was seen yet."""
