"""What a gateway remembers of tasks: how long their calls take, and the pauses between them.

Nothing here must survive: each call carries its task's deadline. A gateway without memory, or one that sees
only some calls of a task, estimates what follows from fewer observations.
"""

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from qlm.domain.ids import ModelId
from qlm.domain.request import NS_PER_S, RequestMetadata
from qlm.gateway.core.tasks.averages import Average, TaskLengths
from qlm.gateway.core.tasks.seen_task import SeenTask, TaskKind
from qlm.gateway.core.tasks.urgency import Urgency, call_urgency
from qlm.rct_estimator.normal import Normal

TASKS_MAX: Final = 10_000
"""Tasks remembered until their deadline; the one without a call for the longest time is forgotten first."""

KINDS_MAX: Final = 1_000
"""Pairs of tenant and model whose calls are learned apart; the one used longest ago is forgotten first."""


class TaskKey(NamedTuple):
    """A task: names of different tenants never meet."""

    tenant: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """A call of a task.

    Attributes:
        key: Its task.
        deadline_ns: Deadline of the task, nanoseconds since the epoch.
        calls_left: Calls still to come, this one included; None if the client does not know.
        urgency: Urgency of the call.
    """

    key: TaskKey
    deadline_ns: int
    calls_left: int | None
    urgency: Urgency


class _Learned:
    """What was learned of a kind of tasks."""

    def __init__(self) -> None:
        self.service = Average()
        self.pause = Average()
        self.lengths = TaskLengths()


class TaskMemory:
    """Tasks that one gateway has seen, and what it has learned from them."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TaskKey, SeenTask] = OrderedDict()
        self._deadlines: list[tuple[int, TaskKey]] = []  # a heap; of tasks that are forgotten, too
        self._learned: OrderedDict[TaskKind, _Learned] = OrderedDict()

    def call(
        self, key: TaskKey, model: ModelId, deadline_ns: int, calls_left: int | None, now_ns: int
    ) -> TaskCall:
        """Return a call with its urgency; nothing is remembered of it before `note_arrival`.

        Args:
            key: Its task.
            model: Model that answers.
            deadline_ns: Deadline of the task, nanoseconds since the epoch; after `now_ns`.
            calls_left: Calls still to come, this one included; None if the client does not know.
            now_ns: The present.
        """
        learned = self._learned.get(TaskKind(key.tenant, model)) or _Learned()
        if calls_left is None:
            task = self._tasks.get(key)
            before = 0 if task is None or task.deadline_ns <= now_ns else task.calls
            later = learned.lengths.left_after(before + 1)
        else:
            later = calls_left - 1.0
        service, pause = learned.service.time(), learned.pause.time()
        left_s = max(0.0, (deadline_ns - now_ns) / NS_PER_S)
        urgency = call_urgency(left_s, service, _times(service + pause, later))
        return TaskCall(key=key, deadline_ns=deadline_ns, calls_left=calls_left, urgency=urgency)

    def note_arrival(self, call: TaskCall, model: ModelId, now_ns: int) -> None:
        """Take the arrival of a call that is queued: a retry of one that was not is no further call."""
        self._end_those_due(now_ns)
        kind = TaskKind(call.key.tenant, model)
        task = self._task(call, kind)
        if (pause_ns := task.pause_ns(call.calls_left, now_ns)) is not None:
            self._kind(kind).pause.observe(pause_ns / NS_PER_S)
        task.take_call(call.calls_left)
        if call.calls_left == 1:
            self._end(call.key)

    def ended(self, metadata: RequestMetadata, first_ns: int | None, ended_ns: int) -> None:
        """Take the end of a request: its time since the first token is what calls take once served.

        Args:
            metadata: The request; nothing happens if it belongs to no task.
            first_ns: Time of its first token; None without any, or if it failed.
            ended_ns: Time of its end.
        """
        if (key := task_key(metadata)) is None:
            return
        if first_ns is not None:
            kind = TaskKind(metadata.tenant, metadata.model)
            self._kind(kind).service.observe((ended_ns - first_ns) / NS_PER_S)
        if (task := self._tasks.get(key)) is not None:
            task.ended_ns = ended_ns

    def _task(self, call: TaskCall, kind: TaskKind) -> SeenTask:
        if (task := self._tasks.get(call.key)) is None:
            task = self._tasks[call.key] = SeenTask(kind, call.deadline_ns)
            self._await_deadline(call)
        elif task.deadline_ns != call.deadline_ns:
            task.deadline_ns = call.deadline_ns
            self._await_deadline(call)
        self._tasks.move_to_end(call.key)
        if len(self._tasks) > TASKS_MAX:
            self._tasks.popitem(last=False)  # not over yet: its calls so far are no length
        return task

    def _await_deadline(self, call: TaskCall) -> None:
        heappush(self._deadlines, (call.deadline_ns, call.key))
        if len(self._deadlines) > 2 * TASKS_MAX:
            self._deadlines = sorted((task.deadline_ns, key) for key, task in self._tasks.items())

    def _end_those_due(self, now_ns: int) -> None:
        """End the tasks whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, key = heappop(self._deadlines)
            if (task := self._tasks.get(key)) is not None and task.deadline_ns <= now_ns:
                self._end(key)

    def _end(self, key: TaskKey) -> None:
        task = self._tasks.pop(key)
        self._kind(task.kind).lengths.observe(task.length)

    def _kind(self, kind: TaskKind) -> _Learned:
        learned = self._learned.setdefault(kind, _Learned())
        self._learned.move_to_end(kind)
        if len(self._learned) > KINDS_MAX:
            self._learned.popitem(last=False)
        return learned


def task_key(metadata: RequestMetadata) -> TaskKey | None:
    """Return the task of a request; None if it belongs to none."""
    id = metadata.extensions.task_id
    return None if id is None else TaskKey(metadata.tenant, id)


def call_again(metadata: RequestMetadata) -> TaskCall | None:
    """Return the call of a task that a request is."""
    key, extensions = task_key(metadata), metadata.extensions
    if key is None or extensions.task_deadline_ns is None or metadata.slo.target_ms is None:
        return None
    return TaskCall(
        key=key,
        deadline_ns=extensions.task_deadline_ns,
        calls_left=None if extensions.task_calls is None else extensions.task_calls + 1,
        urgency=Urgency(metadata.slo.target_ms / 1000, metadata.cls.late),
    )


def _times(one: Normal, number: float) -> Normal:
    """Return the time of a number of calls like one, which are independent of each other."""
    return Normal(one.mean * number, one.var * number)
