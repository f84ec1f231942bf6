"""Histogram of a class's output lengths over its latest answers: O(1) per answer."""

from typing import Final

from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, is_complete, length_bin
from qlm.domain.outcome import Outcome

CUT_OFF: Final = 2 * LENGTH_BINS
"""Offset of the counts of truncated answers, behind those of completed ones."""

SLOTS: Final = 4 * LENGTH_BINS
"""Numbers in one histogram: completed answers, their tokens, truncated answers, their tokens, by bin each."""


class LengthStats:
    """Output lengths of one class's latest answers.

    Answers are counted twice: in the window under way, and together with those of the window before. When the
    window is full, the older counts are dropped, so that one to two windows remain and no count is rounded.
    """

    __slots__ = ("_answers", "_recent", "_seen", "_value")

    def __init__(self) -> None:
        self._seen = [0] * SLOTS
        self._recent = [0] * SLOTS
        self._answers = 0
        self._value: LengthHistogram | None = LengthHistogram()

    def count(self, tokens: int, outcome: Outcome, window: int) -> None:
        """Count a request that ended after `tokens` tokens, unless it has no output.

        Args:
            window: Answers per window.
        """
        if not tokens:
            return
        if self._answers >= window:
            self._seen, self._recent, self._answers = self._recent, [0] * SLOTS, 0
        slot = length_bin(tokens) + (0 if is_complete(outcome) else CUT_OFF)
        self._seen[slot] += 1
        self._seen[slot + LENGTH_BINS] += tokens
        self._recent[slot] += 1
        self._recent[slot + LENGTH_BINS] += tokens
        self._answers += 1
        self._value = None

    @property
    def value(self) -> LengthHistogram:
        """Histogram; the same object until the next answer."""
        if self._value is None:
            self._value = histogram(self._seen)
        return self._value


def histogram(counts: list[int]) -> LengthHistogram:
    """Split `SLOTS` numbers into a histogram."""
    size = LENGTH_BINS
    return LengthHistogram(*(tuple(counts[at : at + size]) for at in range(0, SLOTS, size)))
