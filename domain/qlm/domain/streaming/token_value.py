"""Value of tokens by the buffer of their client (TokenFlow, equation 1); seconds from arrival.

The reader begins with the real first token, whenever it comes. B tokens of an answer are unread when the next
one arrives; what comes further ahead is worth less.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline

FULL_SHARE: Final = 0.1
"""Buffer up to which a token counts fully, as a share of the answer's tokens (section 7.1)."""

NOTHING_SHARE: Final = 0.2
"""Buffer from which a token counts for nothing."""


def token_weight(unread: float, full: float, alpha: float) -> float:
    """Return a token's weight (equation 1): 1 up to `full` unread tokens, less by `alpha` for each more."""
    return 1.0 if unread <= full else max(0.0, 1.0 - alpha * (unread - full))


def unread(times_s: Sequence[float], tokens_per_s: float) -> Iterator[float]:
    """Yield the unread tokens when each token of an answer arrives, without that token."""
    if not times_s:
        return
    reading = Timeline(Reader(times_s[0], tokens_per_s))
    for token, at_s in enumerate(times_s):
        read = (at_s - times_s[0] - reading.late_s) * tokens_per_s
        yield max(0.0, token - read)
        reading.deliver(1, at_s)


def effective_tokens(times_s: Sequence[float], tokens_per_s: float) -> float:
    """Return the weighted tokens of an answer, as effective throughput counts them.

    It rewards slow generation at low load, where all tokens ahead of the reader count for nothing.
    """
    full = FULL_SHARE * len(times_s)
    alpha = 1 / max(1e-9, (NOTHING_SHARE - FULL_SHARE) * len(times_s))
    return sum(token_weight(each, full, alpha) for each in unread(times_s, tokens_per_s))
