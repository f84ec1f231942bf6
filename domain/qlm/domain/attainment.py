"""SLO attainment of a request: the one rule by which gateways, their metrics, `qlm` and simulations judge.

A gateway that sends an answer judges by when the output came to it; all others by the record of the request.
"""

from typing import Final, NamedTuple

from qlm.domain.outcome import Outcome
from qlm.domain.request import NS_PER_MS, NS_PER_S, RequestMetadata, RequestRecord
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import LATE_S, Timeline


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

    @property
    def reader_late_s(self) -> float | None:
        """Lateness of the last token for its reader; None without a reader, and before the first token."""
        return None if self.timeline is None or self.first_ns is None else self.timeline.late_s

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
        if self.timeline is None or self.first_ns is None or tokens < 2:
            self.take(tokens, now_ns)
            return
        step_s = (now_ns - self.last_ns) / tokens / NS_PER_S
        self.timeline.deliver_run(tokens, (self.last_ns - self._arrival_ns) / NS_PER_S + step_s, step_s)
        self.last_ns = now_ns


class Attainment(NamedTuple):
    """Whether a request met its objective.

    Attributes:
        met: True or False. None without an objective, while that is undecided, and if it was cancelled.
        late_by_s: Time by which it missed its objective, seconds: 0 if it met it. None if `met` is None, and
            if there is no answer.
    """

    met: bool | None = None
    late_by_s: float | None = None


UNDECIDED: Final = Attainment()


def attainment(
    metadata: RequestMetadata, times: OutputTimes, *, outcome: Outcome, ended_ns: int, tokens: int
) -> Attainment:
    """Return whether a request that has ended met its objective.

    Args:
        metadata: The request.
        times: When its output came.
        outcome: How it ended; one that ended badly missed its objective.
        ended_ns: Time of its end.
        tokens: Number of output tokens.
    """
    if not outcome.ok:
        return _without_answer(metadata, outcome)
    return _answered(_late_ns(metadata, times.first_ns, times.reader_late_s, ended_ns, tokens))


def recorded_attainment(record: RequestRecord, now_ns: int) -> Attainment:
    """Return whether a request met its objective, by its record.

    One that has not ended counts as late as soon as its first token, the next token of its reader, or its
    answer is overdue.
    """
    metadata, outcome = record.metadata, record.outcome
    if outcome is None:
        overdue_ns = _overdue_ns(record, now_ns)
        return UNDECIDED if overdue_ns <= 0 else Attainment(met=False, late_by_s=overdue_ns / NS_PER_S)
    if not outcome.ok:
        return _without_answer(metadata, outcome)
    ended_ns = now_ns if record.ended_ns is None else record.ended_ns
    late_ns = _late_ns(metadata, record.first_token_ns, record.reader_late_s, ended_ns, record.output_tokens)
    return _answered(late_ns)


def attained(metadata: RequestMetadata, times: OutputTimes, *, ended_ns: int, tokens: int) -> bool | None:
    """Return True if an answered request met its objective; None for batch work, which has none.

    A reader's objective is met if the reader never waited: each token came by its own time, whenever the
    others came (smooth goodput, equation 4). A time per token is a mean, as the name TPOT says.
    """
    late_ns = _late_ns(metadata, times.first_ns, times.reader_late_s, ended_ns, tokens)
    return None if late_ns is None else late_ns <= 0


def _answered(late_ns: float | None) -> Attainment:
    if late_ns is None:
        return UNDECIDED
    return Attainment(met=late_ns <= 0, late_by_s=max(0.0, late_ns) / NS_PER_S)


def _without_answer(metadata: RequestMetadata, outcome: Outcome) -> Attainment:
    if metadata.slo.target_ms is None or outcome is Outcome.CANCELLED:
        return UNDECIDED
    return Attainment(met=False)


def _late_ns(
    metadata: RequestMetadata,
    first_ns: int | None,
    reader_late_s: float | None,
    ended_ns: int,
    tokens: int,
) -> float | None:
    """Return by how much an answer missed its objective, nanoseconds: not above 0 if it met it.

    Of an objective on its tokens and a deadline of the whole answer beside it, the larger miss counts.
    """
    late_ns = _slo_late_ns(metadata, first_ns, reader_late_s, ended_ns, tokens)
    deadline_ms = metadata.extensions.deadline_ms
    if late_ns is None or deadline_ms is None:
        return late_ns
    return max(late_ns, ended_ns - metadata.arrival_ns - deadline_ms * NS_PER_MS)


def _slo_late_ns(
    metadata: RequestMetadata,
    first_ns: int | None,
    reader_late_s: float | None,
    ended_ns: int,
    tokens: int,
) -> float | None:
    arrival_ns = metadata.arrival_ns
    begun_ns = ended_ns if first_ns is None else first_ns
    match metadata.slo:
        case BatchSlo():
            return None
        case DeadlineSlo(deadline_ms=deadline_ms):
            return ended_ns - arrival_ns - deadline_ms * NS_PER_MS
        case TokenSlo(ttft_ms=ttft_ms, tpot_ms=tpot_ms):
            late_ns = begun_ns - arrival_ns - ttft_ms * NS_PER_MS
            if tpot_ms is None:
                return late_ns
            return max(late_ns, ended_ns - begun_ns - max(0, tokens - 1) * tpot_ms * NS_PER_MS)
        case ReadingSlo() as slo:
            reader = Reader.of(slo)
            if reader_late_s is not None:
                return _reader_late_ns(reader_late_s)
            # Records of earlier versions have no such time: at least the first and the last token were late.
            last_late_s = (ended_ns - arrival_ns) / NS_PER_S - reader.due_s(max(0, tokens - 1))
            first_late_s = (begun_ns - arrival_ns) / NS_PER_S - reader.due_s(0)
            return max(first_late_s, last_late_s) * NS_PER_S


def _reader_late_ns(late_s: float) -> float:
    return 0.0 if late_s <= LATE_S else late_s * NS_PER_S


def _overdue_ns(record: RequestRecord, now_ns: int) -> float:
    """Return by how much a request that has not ended is late already; not above 0 if it is in time."""
    metadata = record.metadata
    if (deadline_ns := metadata.deadline_ns) is None:
        return 0.0
    if not metadata.answered_by_first_token or record.first_token_ns is None:
        late_ns = float(now_ns - deadline_ns)
    else:
        late_ns = max(record.first_token_ns - deadline_ns, _reader_late_ns(_reader_waits_s(record, now_ns)))
    if (whole_ms := metadata.extensions.deadline_ms) is None:
        return late_ns
    return max(late_ns, now_ns - metadata.arrival_ns - whole_ms * NS_PER_MS)


def _reader_waits_s(record: RequestRecord, now_ns: int) -> float:
    """Return how long the reader of an answer that has begun has waited, for its next token, too."""
    metadata = record.metadata
    late_s = record.reader_late_s or 0.0
    if not isinstance(metadata.slo, ReadingSlo):
        return late_s
    if record.settled or record.output_tokens >= metadata.sampling.max_tokens:  # no token will come
        return late_s
    next_due_s = Reader.of(metadata.slo).due_s(record.output_tokens)
    return max(late_s, (now_ns - metadata.arrival_ns) / NS_PER_S - next_due_s)
