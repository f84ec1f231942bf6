"""A task as one gateway knows it: the calls that it has seen."""

from dataclasses import dataclass
from typing import NamedTuple

from qlm.domain.ids import ModelId


class TaskKind(NamedTuple):
    """Tasks that are learned from together."""

    tenant: str
    model: ModelId


@dataclass(slots=True)
class SeenTask:
    """A task of which a gateway has seen calls.

    Attributes:
        kind: What its calls are learned with.
        deadline_ns: Its deadline, as its last call named it.
        calls: Calls seen here.
        stated: Number of its calls that follows from the first `calls_left`; None before it.
        calls_left: `calls_left` of its last call.
        ended_ns: End of its last call; None while that runs.
    """

    kind: TaskKind
    deadline_ns: int
    calls: int = 0
    stated: int | None = None
    calls_left: int | None = None
    ended_ns: int | None = None

    @property
    def length(self) -> int:
        """Number of its calls: other gateways may have seen some of them."""
        return max(self.calls, self.stated or 0)

    def pause_ns(self, calls_left: int | None, now_ns: int) -> int | None:
        """Return the pause before the next call; None if there was none, or another gateway saw its begin."""
        if self.ended_ns is None or now_ns < self.ended_ns:
            return None
        if calls_left is not None and self.calls_left is not None and calls_left != self.calls_left - 1:
            return None
        return now_ns - self.ended_ns

    def take_call(self, calls_left: int | None) -> None:
        """Take the arrival of its next call."""
        if self.stated is None and calls_left is not None:
            self.stated = self.calls + calls_left
        self.calls, self.calls_left, self.ended_ns = self.calls + 1, calls_left, None
