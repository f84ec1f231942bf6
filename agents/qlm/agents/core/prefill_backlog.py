"""The prefill backlog of an engine: prompts that it was given and has not computed yet.

An engine computes prompts in the order in which they come. What it was given, no urgent request overtakes, no
other instance takes over, and no demotion reaches in time. So it is given no more than keeps it busy, or than
the objectives leave time for (`scheduling.prefill_limit`). The others wait in the queue, by urgency.
"""

import sys
from collections.abc import Iterable
from typing import Final

from qlm.agents.core.costs.engine_speed import NO_SPEED, EngineSpeed
from qlm.agents.core.request import TrackedRequest
from qlm.domain.ids import RequestId

ITERATIONS_MIN: Final = 2
"""Least bound, in iterations full of prompts: one is computed while the next is put together."""

UNBOUNDED_NS: Final = sys.maxsize
"""Bound where no objective is expected, or the engine's batch policy orders prompts itself."""


class PrefillBacklog:
    """Counts prompts from their submission to their first token, by the time that they take.

    Attributes:
        work_ns: Time that they take; 0 for engines of unknown speed.
        most_ns: The bound. A prompt that takes longer is computed alone.
        refused: One was not submitted, or not pulled: to be decided again with the next first token.
    """

    def __init__(self) -> None:
        self.work_ns = 0
        self.most_ns = UNBOUNDED_NS
        self.refused = False
        self._speed = NO_SPEED
        self._times_ns: dict[RequestId, int] = {}

    def resize(self, speed: EngineSpeed, generating: Iterable[TrackedRequest]) -> None:
        """Take another engine with its requests; it has no bound yet."""
        # Where a whole answer comes at once, nothing shows that its prompt is computed.
        self._speed, self.most_ns = NO_SPEED if speed.answer_s else speed, UNBOUNDED_NS
        ids = {tracked.id for tracked in generating}
        self._times_ns = {id: time_ns for id, time_ns in self._times_ns.items() if id in ids}
        self.work_ns = sum(self._times_ns.values())

    def bound(self, most_s: float) -> None:
        """Bound the prompts by a time, or by full iterations if those take longer."""
        least_s = ITERATIONS_MIN * self._speed.batched_tokens_max * self._speed.token_s
        self.most_ns = UNBOUNDED_NS if most_s == float("inf") else round(max(least_s, most_s) * 1e9)

    def submitted(self, tracked: TrackedRequest, tokens: int) -> None:
        """Count a prompt of that many tokens."""
        time_ns = self._time_ns(tokens)
        if time_ns:
            self._times_ns[tracked.id] = time_ns
            self.work_ns += time_ns

    def over(self, tracked: TrackedRequest) -> None:
        """Stop counting a prompt that is computed, or not needed any more."""
        self.work_ns -= self._times_ns.pop(tracked.id, 0)

    def holds(self, tracked: TrackedRequest) -> bool:
        """Return whether the prompt of a request counts."""
        return tracked.id in self._times_ns

    def takes(self, tokens: int) -> bool:
        """Return whether the engine is given a prompt of that many tokens now; note it if not."""
        taken = not self.work_ns or self.work_ns + self._time_ns(tokens) <= self.most_ns
        self.refused |= not taken
        return taken

    def places(self, usual_tokens: int, coming: int) -> int:
        """Return how many more prompts may be pulled; note it if that is none.

        Args:
            usual_tokens: Tokens of a usual prompt.
            coming: Prompts that were asked for, and may not be submitted yet.
        """
        each_ns = self._time_ns(usual_tokens)
        if self.most_ns == UNBOUNDED_NS or not each_ns:
            return sys.maxsize
        room = (self.most_ns - self.work_ns) // each_ns
        if not self.work_ns:
            room = max(1, room)
        self.refused |= room <= coming
        return max(0, room - coming)

    def _time_ns(self, tokens: int) -> int:
        return round(self._speed.added_s(tokens) * 1e9)
