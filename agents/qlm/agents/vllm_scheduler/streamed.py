"""A request in the engine with its reader, advanced by the times of its tokens."""

from math import inf

from qlm.agents.batching.sent_objective import Objective
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline


class StreamedRequest:
    """A request and the reader of its stream. Times are seconds of the engine's clock.

    Attributes:
        objective: As it came.
        arrival_s: Arrival at QLM.
        deadline_s: Deadline of the whole answer; inf without.
    """

    __slots__ = ("_timeline", "arrival_s", "deadline_s", "objective")

    def __init__(self, objective: Objective, now_s: float) -> None:
        self.objective = objective
        self.arrival_s = now_s - objective.age_s
        self.deadline_s = now_s + objective.left_s
        self._timeline = _timeline(objective)

    @property
    def late_s(self) -> float:
        """Lateness of the last token, seconds; 0 without a reader."""
        return self._timeline.late_s if self._timeline else 0.0

    @property
    def late_sum_s(self) -> float:
        """Sum of the lateness of all tokens, seconds; 0 without a reader."""
        return self._timeline.late_sum_s if self._timeline else 0.0

    @property
    def read_end_s(self) -> float:
        """When all that was delivered is read.

        The arrival before the first token, or without a reader; inf if only the first token counted.
        """
        if self._timeline is None or not self._timeline.tokens:
            return self.arrival_s
        if self.objective.rate == FIRST_TOKEN_ONLY:
            return inf
        return self.arrival_s + self._timeline.read_end_s

    def deliver(self, tokens: int, now_s: float) -> None:
        """Take new tokens."""
        timeline = self._timeline
        if timeline is None:
            return
        if self.objective.rate == FIRST_TOKEN_ONLY:
            tokens = 0 if timeline.tokens else min(tokens, 1)
        timeline.deliver(tokens, now_s - self.arrival_s)


def _timeline(objective: Objective) -> Timeline | None:
    if objective.rate == NO_READER:
        return None
    # Where only the first token counts, it takes one, so that any pace will do.
    pace = 1.0 if objective.rate == FIRST_TOKEN_ONLY else objective.rate
    seen = min(objective.shown, 1) if objective.rate == FIRST_TOKEN_ONLY else objective.shown
    timeline = Timeline(Reader(objective.ttft_s, pace), seen=seen)
    # Their lateness is known by its largest value only, so that each counts as late as the last.
    timeline.late_s, timeline.late_sum_s = objective.late_s, seen * objective.late_s
    return timeline
