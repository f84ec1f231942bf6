"""SLO attainment of a request, as measured by the gateway."""

from typing import Final

from qlm.domain.request import NS_PER_MS, NS_PER_S, RequestMetadata
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline

LATE_S: Final = 1e-6
"""Lateness up to which a reader's token counts as in time: less is rounding."""


class OutputTimes:
    """When the output of one request came, as far as its objective needs it.

    Attributes:
        first_ns: Time of the first output; None before.
        last_ns: Time of the last output; 0 before.
        timeline: Lateness of its reader; None unless the objective has one.
    """

    __slots__ = ("_arrival_ns", "first_ns", "last_ns", "timeline")

    def __init__(self, metadata: RequestMetadata, *, seen: int = 0) -> None:
        """Begin before the first token, or after `seen` tokens that came elsewhere, in time."""
        self._arrival_ns = metadata.arrival_ns
        self.first_ns: int | None = None
        self.last_ns = 0
        slo = metadata.slo
        self.timeline = Timeline(Reader.of(slo), seen=seen) if isinstance(slo, ReadingSlo) else None

    def take(self, tokens: int, now_ns: int) -> None:
        """Take tokens that have just come."""
        if tokens <= 0:
            return
        if self.first_ns is None:
            self.first_ns = now_ns
        self.last_ns = now_ns
        if self.timeline is not None:
            self.timeline.deliver(tokens, (now_ns - self._arrival_ns) / NS_PER_S)

    def take_run(self, tokens: int, now_ns: int) -> None:
        """Take tokens that have come one by one, evenly, since the last ones."""
        if self.first_ns is None or self.timeline is None or tokens < 2:
            self.take(tokens, now_ns)
            return
        step_s = (now_ns - self.last_ns) / tokens / NS_PER_S
        self.timeline.deliver_run(tokens, (self.last_ns - self._arrival_ns) / NS_PER_S + step_s, step_s)
        self.last_ns = now_ns


def attained(metadata: RequestMetadata, times: OutputTimes, *, ended_ns: int, tokens: int) -> bool | None:
    """Return True if an answered request met its objective; None for batch work, which has none.

    A reader's objective is met if the reader never waited: each token came by its own time, whenever the
    others came (smooth goodput, equation 4). A time per token is a mean, as the name TPOT says.

    Args:
        metadata: The request.
        times: When its output came.
        ended_ns: Time of its last token.
        tokens: Number of output tokens.
    """
    first_ns = ended_ns if times.first_ns is None else times.first_ns
    match metadata.slo:
        case BatchSlo():
            return None
        case DeadlineSlo(deadline_ms=deadline_ms):
            return ended_ns - metadata.arrival_ns <= deadline_ms * NS_PER_MS
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=tpot_ms):
            if first_ns - metadata.arrival_ns > ttft_ms * NS_PER_MS:
                return False
            return tpot_ms is None or ended_ns - first_ns <= max(0, tokens - 1) * tpot_ms * NS_PER_MS
        case ReadingSlo(ttft_ms=ttft_ms):
            if times.timeline is None or times.first_ns is None:
                return ended_ns - metadata.arrival_ns <= ttft_ms * NS_PER_MS
            return times.timeline.late_s <= LATE_S
