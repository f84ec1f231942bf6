"""The visit of an instance to its present model, from the agent's point of view."""

from dataclasses import replace
from typing import Final

from qlm.agents.core.scheduling.visits.remain import NEVER, Leave, Remain, Work
from qlm.domain.ids import ModelId

DECIDE_EVERY_NS: Final = 50_000_000
"""Shortest time between two decisions."""


class VisitState:
    """Present decision; a new visit begins with each model that wakes.

    Attributes:
        remain: The last decision to remain.
        decided_ns: Its time.
        awaited: Models that requests waited for then.
        leaving: The decision to leave. It stands until the swap, or until nothing waits there any more.
        evicted: Requests were evicted for it: it is carried through.
        awake_ns: When the model woke.
        left_ns: When each model was left last.
        idle_ns: Since when there is nothing to do; None while there is.
    """

    def __init__(self) -> None:
        self.remain: Remain = NEVER
        self.decided_ns = 0
        self.awaited: frozenset[ModelId] = frozenset()
        self.leaving: Leave | None = None
        self.evicted = False
        self.awake_ns = 0
        self.left_ns: dict[ModelId, int] = {}
        self.idle_ns: int | None = None

    def leave(self, model: ModelId | None, now_ns: int) -> None:
        """End the visit to a model, if one was awake, and begin another one."""
        if model is not None:
            self.left_ns[model] = now_ns
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Begin another visit."""
        self.remain, self.idle_ns, self.awake_ns = NEVER, None, now_ns
        self.evicted = False
        self.stay()

    def stay(self) -> None:
        """Take back the decision to leave; the next one is due at once."""
        self.leaving, self.decided_ns = None, 0

    def begins(self, work: Work, *, latest_start_ns: int | None) -> bool:
        """Return True if a request is still begun in this visit; see `Remain.begins`."""
        return self.remain.begins(work, latest_start_s=self._left_s(latest_start_ns))

    def meant(self, work: Work, *, latest_start_ns: int | None) -> bool:
        """Return True if a request is begun even by an instance with other work; see `Remain.meant`."""
        return self.remain.meant(work, latest_start_s=self._left_s(latest_start_ns))

    def spend(self, prompt_s: float) -> None:
        """Count the prompt of a stopgap."""
        self.remain = replace(self.remain, spare_s=max(0.0, self.remain.spare_s - prompt_s))

    def _left_s(self, latest_start_ns: int | None) -> float:
        return float("inf") if latest_start_ns is None else (latest_start_ns - self.decided_ns) / 1e9
