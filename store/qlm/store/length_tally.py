"""Counting the lengths of a class's answers: O(1) per answer, and the old ones are forgotten.

Answers are counted twice: since the last turn, and with those of the turn before. After so many answers
the former are dropped, which leaves the last one to two windows; no count is ever rounded.
"""

from typing import Final

from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, came_to_its_end, length_bin
from qlm.domain.outcome import Outcome

CUT_OFF: Final = 2 * LENGTH_BINS
"""Where the counts of answers that were cut off begin, behind those that ended."""

SLOTS: Final = 4 * LENGTH_BINS
"""Numbers in one tally: ended answers, their tokens, those cut off, their tokens, by bin each."""


class LengthTally:
    """The lengths of one class's latest answers."""

    __slots__ = ("_answers", "_recent", "_seen", "_value")

    def __init__(self) -> None:
        self._seen = [0] * SLOTS
        self._recent = [0] * SLOTS
        self._answers = 0
        self._value: LengthHistogram | None = LengthHistogram()

    def count(self, tokens: int, outcome: Outcome, window: int) -> None:
        """Count a request that ended after `tokens` tokens; one that produced nothing says nothing.

        Args:
            tokens: Length of its output log.
            outcome: How it ended.
            window: Answers after which those before the last window are forgotten.
        """
        if not tokens:
            return
        if self._answers >= window:
            self._seen, self._recent, self._answers = self._recent, [0] * SLOTS, 0
        slot = length_bin(tokens) + (0 if came_to_its_end(outcome) else CUT_OFF)
        self._seen[slot] += 1
        self._seen[slot + LENGTH_BINS] += tokens
        self._recent[slot] += 1
        self._recent[slot + LENGTH_BINS] += tokens
        self._answers += 1
        self._value = None

    @property
    def value(self) -> LengthHistogram:
        """The counts; the same object until the next answer."""
        if self._value is None:
            self._value = histogram(self._seen)
        return self._value


def histogram(counts: list[int]) -> LengthHistogram:
    """Cut `SLOTS` numbers into the histogram they are."""
    size = LENGTH_BINS
    return LengthHistogram(*(tuple(counts[at : at + size]) for at in range(0, SLOTS, size)))
