"""The head of the virtual queue: the first group with something to pull, found again only after changes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from qlm.agents.core.scheduling.swap_hysteresis import SwapHysteresis
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.urgency import service_order
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue

_NEVER_NS: Final = 1 << 63

FIRST_PAUSE_NS: Final = 50_000_000
"""Back-off after the first short pull of a group; doubled by each further one."""

PAUSE_MAX_NS: Final = 2_000_000_000
"""Longest back-off."""


class SloStart(NamedTuple):
    """The last start of an SLO-bound request."""

    at_ns: int
    priority: int
    model: ModelId


class PullBackoff:
    """Back-off for class queues that returned fewer messages than requested."""

    def __init__(self) -> None:
        self._pause_ns: dict[GroupId, int] = {}
        self._until_ns: dict[GroupId, int] = {}

    def came_short(self, group: GroupId, now_ns: int) -> None:
        """Back off from a group, twice as long as the last time."""
        pause_ns = min(2 * self._pause_ns.get(group, FIRST_PAUSE_NS // 2), PAUSE_MAX_NS)
        self._pause_ns[group] = pause_ns
        self._until_ns[group] = now_ns + pause_ns

    def reset(self, group: GroupId) -> None:
        """Make the next back-off short again."""
        self._pause_ns.pop(group, None)

    def put_off(self, group: GroupId, until_ns: int) -> None:
        """Back off from a group until a given time."""
        self._until_ns[group] = until_ns

    def until_ns(self, group: GroupId) -> int:
        """Return the end of the back-off from a group; 0 without one."""
        return self._until_ns.get(group, 0)

    def keep(self, groups: Iterable[Group]) -> None:
        """Forget all other groups."""
        if not self._until_ns:
            return
        kept = {group.id for group in groups}
        for known in (self._pause_ns, self._until_ns):
            for group in known.keys() - kept:
                del known[group]


class QueueHead:
    """The virtual queue of an instance, and what was pulled from it since it was read.

    Args:
        instance: The instance.
        models: The models it may serve.
        failed_until_ns: Models whose engine failed, with the end of their pause; a live view.

    Attributes:
        pulling: Messages requested from the broker and not yet received.
        deferred: A group was deferred since it needs another model.
        last_slo_start: The last start of an SLO-bound request.
        awaited: Models of groups with something to pull, as of the last reading.
    """

    def __init__(
        self, instance: InstanceId, models: Collection[ModelId], failed_until_ns: Mapping[ModelId, int]
    ) -> None:
        self.pulling = 0
        self.deferred = False
        self.last_slo_start: SloStart | None = None
        self.awaited: frozenset[ModelId] = frozenset()
        self._failed_until_ns = failed_until_ns
        self._models = frozenset(models)
        self._queue = VirtualQueue(instance=instance)
        self._taken: dict[GroupId, int] = {}
        self._awaited_now: tuple[ModelId, ...] | None = None
        self._backoff = PullBackoff()
        self._spent = 0
        self._head: Group | None = None
        self._urgency = (0, 0.0, 0)
        self._valid_until_ns = 0
        self._committed: GroupId | None = None
        self._undeferred = False
        self._hysteresis: SwapHysteresis | None = None
        self._admits: Callable[[Group], bool] | None = None
        self._has_best_effort_of: ModelId | None = None
        self._first_since: tuple[GroupId, int] | None = None
        self._scanned: dict[GroupId, int | None] = {}

    def read(self, queue: VirtualQueue, leasing: Iterable[GroupId | None]) -> None:
        """Take a new reading. The groups of messages still being leased may include them in their counts."""
        taken: dict[GroupId, int] = {}
        for group in leasing:
            if group:
                taken[group] = taken.get(group, 0) + 1
        self._queue, self._taken, self._spent, self._awaited_now = queue, taken, 0, None
        self._backoff.keep(queue.groups)
        self._scanned = {group.id: at for group in queue.groups if (at := self._scanned.get(group.id))}
        self.awaited = frozenset(self.models())
        self.changed()

    def pulled(self, group: GroupId, *, limit: int, came: int, now_ns: int) -> None:
        """Count the messages of a pull that requested `limit`."""
        self.pulling -= limit
        if came:
            self._first_since = None
            self._backoff.reset(group)
        if came < limit:
            self._backoff.came_short(group, now_ns)
        self._taken[group] = self._taken.get(group, 0) + came
        self._awaited_now = None
        self.changed()

    def give_back(self, group: GroupId | None) -> None:
        """Take back the count of a message that was no work: its group still has all it had."""
        if group is not None and self._taken.get(group, 0):
            self._taken[group] -= 1
            self._spent, self._awaited_now = 0, None
            self.changed()

    def put_off(self, group: GroupId | None, until_ns: int) -> None:
        """Leave a group alone until a given time."""
        if group is not None:
            self._backoff.put_off(group, until_ns)
        self.changed()

    def commit(self, group: GroupId, *, emptied: bool) -> None:
        """Keep a group as head until it has nothing to pull, or `release`: requests were preempted for it.

        A plan made meanwhile may put the preempted ones first again, as their model is still the awake one.
        Following it would preempt them over and over.

        Args:
            group: The group.
            emptied: Nothing runs on. Then the group is not deferred either: it was as late as it could be,
                and a moment later no swap meets its deadline, but the preempted ones are lost for it already.
        """
        self._committed, self._undeferred = group, emptied
        self.changed()

    @property
    def committed(self) -> bool:
        """Requests were preempted for a group, which is kept as head."""
        return self._committed is not None

    def release(self) -> None:
        """Follow the order of the virtual queue again."""
        self._committed = self._first_since = None
        self.changed()

    def defer_by(self, hysteresis: SwapHysteresis | None) -> None:
        """Set the hysteresis against model swaps; None for none."""
        if hysteresis != self._hysteresis:
            self._hysteresis = hysteresis
            self.changed()

    def restrict(self, admits: Callable[[Group], bool] | None) -> None:
        """Pass over groups that are not admitted; None for no restriction."""
        if admits is not None or self._admits is not None:
            self._admits = admits
            self.changed()

    def pass_best_effort_of(self, model: ModelId | None) -> None:
        """Pass over the best-effort groups of a model, of which its engine has enough; None for no model."""
        if model != self._has_best_effort_of:
            self._has_best_effort_of = model
            self.changed()

    def waiting(self) -> Iterator[tuple[Group, int]]:
        """Yield the groups with something to pull, in queue order, and how much."""
        for group in self._queue.groups[self._spent :]:
            if self._possible(group):
                yield group, self.left(group)

    def behind(self, head: Group, model: ModelId, now_ns: int) -> Iterator[Group]:
        """Yield the other groups of a model that could be scanned now, in queue order."""
        for group in self._queue.groups[self._spent :]:
            if group.cls.model != model or group.id == head.id or not self._possible(group):
                continue
            if self._scanned.get(group.id) == group.head_arrival_ns or self._passed_over(group):
                continue
            if self._backoff.until_ns(group.id) <= now_ns:
                yield group

    def scanned(self, group: Group) -> None:
        """Note that the first requests of a group were pulled: until the next reading its head is unknown."""
        self._scanned[group.id] = group.head_arrival_ns

    @property
    def forecasts(self) -> Sequence[ClassForecast]:
        """What the plan expects of the classes here."""
        return self._queue.forecasts

    @property
    def homes(self) -> Sequence[ModelId]:
        """Models of the placement that this instance serves, the one with the most arrivals first.

        The placement may be older than the agent, which may have started with other models.
        """
        return [model for model in self._queue.homes if model in self._models]

    def first_since_ns(self, head: Group, now_ns: int) -> int:
        """Return the time since which a group of another model has been the head."""
        if self._first_since is None or self._first_since[0] != head.id:
            self._first_since = (head.id, now_ns)
        return self._first_since[1]

    def changed(self) -> None:
        """Find the head again at the next call of `group`."""
        self._valid_until_ns = 0

    def group(self, now_ns: int) -> Group | None:
        """Return the first group that has something to pull."""
        if now_ns >= self._valid_until_ns:
            self._find(now_ns)
        return self._head

    def models(self) -> tuple[ModelId, ...]:
        """Return the models of the groups that have something to pull, in queue order, each once."""
        if self._awaited_now is None:
            groups = self._queue.groups[self._spent :]
            found = dict.fromkeys([group.cls.model for group in groups if self._possible(group)])
            self._awaited_now = tuple(found)
        return self._awaited_now

    def left(self, group: Group) -> int:
        """Return the number of requests that a group still has, as far as known here."""
        return group.remaining - self._taken.get(group.id, 0)

    @property
    def until_ns(self) -> int | None:
        """Time at which a group before the head becomes eligible; None if there is none."""
        return None if self._valid_until_ns == _NEVER_NS else self._valid_until_ns

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Urgency of the group last returned."""
        return self._urgency

    def _find(self, now_ns: int) -> None:
        groups = self._queue.groups
        while self._spent < len(groups) and not self._possible(groups[self._spent]):
            self._spent += 1
        self._head, self._valid_until_ns, self.deferred = None, _NEVER_NS, False
        for group in self._in_order():
            if not self._possible(group) or self._passed_over(group):
                continue
            if self._hysteresis is not None and not (self._undeferred and group.id == self._committed):
                deferred_until_ns = self._hysteresis.until_ns(group, now_ns)
                if deferred_until_ns > now_ns:
                    self.deferred = True
                    self._valid_until_ns = min(self._valid_until_ns, deferred_until_ns)
                    continue
            free_ns = max(self._backoff.until_ns(group.id), self._failed_until_ns.get(group.cls.model, 0))
            if free_ns <= now_ns:
                self._head = group
                self._urgency = service_order(
                    group.cls.priority, group.deadline_ns, group.head_arrival_ns or 0
                )
                return
            self._valid_until_ns = min(self._valid_until_ns, free_ns)

    def _passed_over(self, group: Group) -> bool:
        if group.cls.model == self._has_best_effort_of and group.cls.due_ms is None:
            return True
        return self._admits is not None and not self._admits(group)

    def _in_order(self) -> Sequence[Group]:
        """Return the groups with something to pull, the committed one first."""
        groups = self._queue.groups[self._spent :]
        if self._committed is None:
            return groups
        first = [group for group in groups if group.id == self._committed and self._possible(group)]
        if not first:
            self._committed = None
            return groups
        return (*first, *(group for group in groups if group.id != self._committed))

    def _possible(self, group: Group) -> bool:
        return self.left(group) > 0 and group.cls.model in self._models
