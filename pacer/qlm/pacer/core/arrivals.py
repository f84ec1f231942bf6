"""Measured rate of arrival of a text: a mean that forgets within about a second."""

from typing import Final

MEMORY_MS: Final = 1000.0
"""Time over which arrivals count: after a gap g, older ones by the factor memory / (memory + g)."""


class Arrivals:
    """Arrivals of text, and their rate.

    A gap longer than what may be bridged counts only as long as that: the text before it cannot be spread
    further, and a pause for a tool call says nothing about the pace of what follows.
    """

    def __init__(self, gap_max_ms: float) -> None:
        """Begin without an arrival."""
        self._gap_max_ms = gap_max_ms
        self._graphemes = 0.0
        self._span_ms = 0.0
        self._latest = 0
        self._latest_ms: float | None = None

    def add(self, graphemes: int, now_ms: float) -> None:
        """Take an arrival: its graphemes belong to the gap that follows."""
        if self._latest_ms is not None:
            gap_ms = min(now_ms - self._latest_ms, self._gap_max_ms)
            weight = MEMORY_MS / (MEMORY_MS + gap_ms)
            self._graphemes = self._graphemes * weight + self._latest
            self._span_ms = self._span_ms * weight + gap_ms
        self._latest = graphemes
        self._latest_ms = now_ms

    @property
    def per_ms(self) -> float:
        """Graphemes per millisecond; 0 before it is known."""
        return self._graphemes / self._span_ms if self._span_ms > 0 else 0.0
