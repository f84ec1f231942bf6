"""A reader: the first token expected after some time, then tokens at a pace; seconds from arrival."""

from typing import Final, NamedTuple

from qlm.domain.slo import ReadingSlo

READING_TOKENS_PER_S: Final = 4.8
"""Pace of reading (Andes, table 2)."""

SPEECH_TOKENS_PER_S: Final = 3.3
"""Pace of speech (Andes, table 2)."""


class Reader(NamedTuple):
    """A reader of a stream.

    Attributes:
        ttft_s: When the first token is due.
        tokens_per_s: Pace at which the reader takes tokens from then on.
    """

    ttft_s: float
    tokens_per_s: float

    @classmethod
    def of(cls, slo: ReadingSlo) -> "Reader":
        """Return the reader that an objective describes."""
        return cls(slo.ttft_ms / 1000, slo.tokens_per_s)

    def due_s(self, token: int) -> float:
        """Return when a token is due; the first is number 0."""
        return self.ttft_s + token / self.tokens_per_s

    def reads_s(self, tokens: int) -> float:
        """Return the time to read some tokens without a pause."""
        return tokens / self.tokens_per_s
