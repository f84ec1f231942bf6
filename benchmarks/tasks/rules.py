"""Rules by which calls of tasks get their objectives: that of gateways, and its rivals."""

from collections.abc import Mapping
from typing import Final

from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS, RequestExtensions
from qlm.domain.ids import ModelId
from qlm.domain.request import RequestMetadata
from qlm.domain.slo import BatchSlo, DeadlineSlo
from qlm.gateway.core.tasks.memory import TaskKey, TaskMemory
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.tasks import CallObjectives, ChosenObjective, MakeCallObjectives, TaskCalls

NO_OBJECTIVE: Final = ChosenObjective(slo=BatchSlo())
"""Of a call whose task's deadline has passed, under every rule but the equal share."""


_TENANT: Final = "default"
_MODEL: Final = ModelId("mistral-7b")


def _due(
    due_s: float, *, late: bool = False, extensions: RequestExtensions = NO_REQUEST_EXTENSIONS
) -> ChosenObjective:
    slo = DeadlineSlo(deadline_ms=max(0.01, due_s * 1e3))
    return ChosenObjective(slo=slo, late=late, extensions=extensions)


class _Rule:
    def __init__(self, tasks: TaskCalls) -> None:
        self._task, self._left = tasks.task.tolist(), tasks.calls_left().tolist()
        self._deadline_ns = tasks.deadline_ns.tolist()

    def _left_s(self, number: int, now_ns: int) -> float:
        return float(EPOCH_NS + self._deadline_ns[number] - now_ns) / 1e9

    def ended(self, metadata: RequestMetadata, first_ns: int | None, ended_ns: int) -> None:
        """Learn nothing."""


class EqualShare(_Rule):
    """Each call has an equal share of the time that its task was given."""

    def __init__(self, tasks: TaskCalls) -> None:
        super().__init__(tasks)
        self._share_s: dict[int, float] = {}

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return the share; the first call of a task fixes it."""
        left_s, task = self._left_s(number, now_ns), self._task[number]
        share_s = self._share_s.setdefault(task, left_s / self._left[number])
        return _due(share_s) if left_s > 0 else NO_OBJECTIVE


class EqualShareOfRest(_Rule):
    """Each call has an equal share of the time that its task has left."""

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return that share."""
        left_s = self._left_s(number, now_ns)
        return _due(left_s / self._left[number]) if left_s > 0 else NO_OBJECTIVE


class TaskDeadline(_Rule):
    """Each call has the deadline of its task."""

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return that deadline."""
        left_s = self._left_s(number, now_ns)
        return _due(left_s) if left_s > 0 else NO_OBJECTIVE


class OfGateways(_Rule):
    """The rule of gateways, `slo.task`."""

    def __init__(self, tasks: TaskCalls, *, says_calls: bool = True) -> None:
        super().__init__(tasks)
        self._memory, self._says_calls = TaskMemory(), says_calls

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return what a gateway makes of the call."""
        if self._left_s(number, now_ns) <= 0:
            return NO_OBJECTIVE
        key = TaskKey(_TENANT, str(self._task[number]))
        deadline_ns = EPOCH_NS + self._deadline_ns[number]
        calls = self._left[number] if self._says_calls else None
        call = self._memory.call(key, _MODEL, deadline_ns, calls, now_ns)
        self._memory.note_arrival(call, _MODEL, now_ns)
        extensions = RequestExtensions(task_id=key.id, task_deadline_ns=deadline_ns)
        return _due(call.urgency.due_s, late=call.urgency.hopeless, extensions=extensions)

    def ended(self, metadata: RequestMetadata, first_ns: int | None, ended_ns: int) -> None:
        """Let the gateway learn."""
        self._memory.ended(metadata, first_ns, ended_ns)


def _without_calls(tasks: TaskCalls) -> CallObjectives:
    return OfGateways(tasks, says_calls=False)


RULES: Final[Mapping[str, MakeCallObjectives]] = {
    "slo.task": OfGateways,
    "slo.task, calls unknown": _without_calls,
    "equal share": EqualShare,
    "equal share of rest": EqualShareOfRest,
    "task's deadline": TaskDeadline,
}
