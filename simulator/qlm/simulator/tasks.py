"""Tasks of several calls in a workload: each call arrives a pause after the one before it has ended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS, RequestExtensions
from qlm.domain.request import RequestMetadata
from qlm.domain.slo import Slo

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCalls:
    """Tasks of a workload, as columns of shape (requests,) each; the calls of a task are consecutive rows.

    Attributes:
        task: Number of each call's task; never decreases.
        pause_ns: Time from the end of the call before to the arrival of each one; 0 for the first of a task.
        deadline_ns: Deadline of each call's task, nanoseconds from the start of the simulation.
    """

    task: _IntArray
    pause_ns: _IntArray
    deadline_ns: _IntArray

    def __post_init__(self) -> None:
        for name in ("pause_ns", "deadline_ns"):
            if getattr(self, name).shape != self.task.shape:
                raise InvalidValueError(
                    f"tasks.{name}", getattr(self, name).shape, f"shape {self.task.shape}"
                )
        if np.any(np.diff(self.task) < 0):
            raise InvalidValueError("tasks.task", self.task.tolist()[:5], "never falling")
        if np.any(self.pause_ns < 0):
            raise InvalidValueError("tasks.pause_ns", int(self.pause_ns.min()), "0 or more")

    def __len__(self) -> int:
        return len(self.task)

    def first(self, requests: int) -> "TaskCalls":
        """Return those of the first requests."""
        parts = (each[:requests] for each in (self.task, self.pause_ns, self.deadline_ns))
        return TaskCalls(**dict(zip(("task", "pause_ns", "deadline_ns"), parts, strict=True)))

    def calls_left(self) -> _IntArray:
        """Return the calls of its task from each call on, itself included, shape (requests,)."""
        ends = np.searchsorted(self.task, self.task, side="right")
        return np.asarray(ends - np.arange(len(self.task)), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenObjective:
    """Objective of a call.

    Attributes:
        slo: The objective.
        late: The call belongs to the demoted class from the start.
        extensions: Optional fields of the call.
        model: Index of its model in `Scenario.models`; None for that of the workload.
    """

    slo: Slo
    late: bool = False
    extensions: RequestExtensions = NO_REQUEST_EXTENSIONS
    model: int | None = None


class CallObjectives(Protocol):
    """Chooses the objectives of calls of tasks, and may learn from what became of earlier ones."""

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return the objective of a call that arrives at `now_ns`, nanoseconds since the epoch."""
        ...

    def ended(self, metadata: RequestMetadata, first_ns: int | None, ended_ns: int) -> None:
        """Take the times of a call's first token, None without any, and of its end."""
        ...


MakeCallObjectives = Callable[[TaskCalls], CallObjectives]
"""Makes the choice of one simulation."""
