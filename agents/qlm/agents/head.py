"""The head of the virtual queue: the first group with something to pull, found again only after changes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qlm.agents.dry import DryGroups
from qlm.agents.held import urgency
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.virtual_queue import VirtualQueue

_NEVER_NS: Final = 1 << 63

WAIT_SHARE: Final = 0.5
"""Share of its target that must be left to a group which waits for another model than its own."""

SWAPS: Final = 2
"""There and back: a model swap takes an instance from its model for so many swaps at least."""

IN_TIME: Final = 1.25
"""A swap is begun so many times as long before a deadline as it takes, to be in time."""

STARVING_NS: Final = 120_000_000_000
"""Work with a deadline that no swap could meet has waited long enough after so much time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Why the model of an instance is left awake for now.

    Attributes:
        model: The one that is awake.
        priority: Groups of a higher one (a lower number) do not wait.
        since_ns: When work with a deadline last started.
        idle_ns: Groups of other models that can wait do so until none has started for so long,
        swap_ns: or for so many times as long (`SWAPS`) as the swap to their model takes.
    """

    model: ModelId
    priority: int
    since_ns: int
    idle_ns: int
    swap_ns: Mapping[ModelId, int] = field(default_factory=dict)

    def until_ns(self, group: Group, now_ns: int) -> int:
        """Until when a group has to wait; past: it need not.

        It is not kept from a swap that can still make it in time; work without a deadline gains nothing by
        being early. But who comes next for the present model would wait for two swaps (the rule of the ski
        rental: never more than twice the cost of knowing what comes).
        """
        if group.cls.model == self.model or group.cls.priority < self.priority:
            return 0
        swap_ns = self.swap_ns.get(group.cls.model, 0)
        free_ns = self.since_ns + max(self.idle_ns, SWAPS * swap_ns)
        if group.cls.due_ms is None or group.head_arrival_ns is None:
            return free_ns
        deadline_ns = group.hopeful_deadline_ns(now_ns + swap_ns)
        if deadline_ns is None:
            return min(free_ns, group.head_arrival_ns + STARVING_NS)
        must_ns = round(max(WAIT_SHARE * group.cls.due_ms * 1e6, IN_TIME * swap_ns))
        return min(free_ns, deadline_ns - must_ns)


class QueueHead:
    """The virtual queue of an instance, and what was pulled from it since it was read.

    Attributes:
        failed_until_ns: Models whose engine failed, and until when they are left alone.
        passed_over: Work that can wait was left alone since it needs another model (`stay_with`).
    """

    def __init__(self, instance: InstanceId, models: Collection[ModelId]) -> None:
        self.failed_until_ns: dict[ModelId, int] = {}
        self._models = frozenset(models)
        self._queue = VirtualQueue(instance=instance)
        self._taken: dict[GroupId, int] = {}
        self._dry = DryGroups()
        self._spent = 0
        self._head: Group | None = None
        self._urgency = (0, 0.0, 0)
        self._until_ns = 0
        self._committed: GroupId | None = None
        self._stays: Stay | None = None
        self.passed_over = False

    def read(self, queue: VirtualQueue, leasing: Iterable[GroupId | None]) -> None:
        """Take a new reading; the groups of messages whose lease is still being taken may count them yet."""
        self._queue = queue
        self._taken = {}
        for group in leasing:
            if group:
                self._taken[group] = self._taken.get(group, 0) + 1
        self._dry.keep(queue.groups)
        self._spent = 0
        self.changed()

    def pulled(self, group: GroupId, *, asked: int, came: int, now_ns: int) -> None:
        """Count what a pull brought."""
        if came:
            self._dry.found(group)
        if came < asked:
            self._dry.empty(group, now_ns)
        self._taken[group] = self._taken.get(group, 0) + came
        self.changed()

    def give_back(self, group: GroupId | None) -> None:
        """Take back the count of a pull that brought no work: its group still has all it had."""
        if group is not None and self._taken.get(group, 0):
            self._taken[group] -= 1
            self._spent = 0
            self.changed()

    def put_off(self, group: GroupId | None, until_ns: int) -> None:
        """Leave a group alone until then."""
        self._dry.put_off(group, until_ns)
        self.changed()

    def commit(self, group: GroupId) -> None:
        """Let a group be the head until it has nothing to pull, or `release`: requests were evicted for it.

        A plan that is made meanwhile may put the evicted ones first again, as their model is still the
        awake one; following it would evict them over and over.
        """
        self._committed = group
        self.changed()

    def release(self) -> None:
        """Follow the order of the virtual queue again."""
        self._committed = None
        self.changed()

    def stay_with(self, stay: Stay | None) -> None:
        """Leave groups of other models alone as long as they have to wait; None to leave none alone."""
        if stay != self._stays:
            self._stays = stay
            self.changed()

    def changed(self) -> None:
        """Have the head found again."""
        self._until_ns = 0

    def group(self, now_ns: int) -> Group | None:
        """Return the first group that has something to pull."""
        if now_ns >= self._until_ns:
            self._find(now_ns)
        return self._head

    def models(self) -> list[ModelId]:
        """Models of the groups that have something to pull, in their order, each once."""
        groups = self._queue.groups[self._spent :]
        return list(dict.fromkeys(group.cls.model for group in groups if self._possible(group)))

    def left(self, group: Group) -> int:
        """How many requests a group still has as far as we know."""
        return group.remaining - self._taken.get(group.id, 0)

    @property
    def until_ns(self) -> int | None:
        """When a group before the head may be pulled for again, if any is left alone for now."""
        return None if self._until_ns == _NEVER_NS else self._until_ns

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Urgency of the group last returned."""
        return self._urgency

    def _find(self, now_ns: int) -> None:
        groups = self._queue.groups
        while self._spent < len(groups) and not self._possible(groups[self._spent]):
            self._spent += 1
        self._head, self._until_ns, self.passed_over = None, _NEVER_NS, False
        for group in self._in_order():
            if not self._possible(group):
                continue
            if self._stays is not None:
                wait_ns = self._stays.until_ns(group, now_ns)
                if wait_ns > now_ns:
                    self.passed_over = True
                    self._until_ns = min(self._until_ns, wait_ns)
                    continue
            free_ns = max(self._dry.until_ns(group.id), self.failed_until_ns.get(group.cls.model, 0))
            if free_ns <= now_ns:
                self._head = group
                self._urgency = urgency(group.cls.priority, group.deadline_ns, group.head_arrival_ns or 0)
                return
            self._until_ns = min(self._until_ns, free_ns)

    def _in_order(self) -> Sequence[Group]:
        """The groups from the first one with something to pull on; before all the committed one."""
        groups = self._queue.groups[self._spent :]
        if self._committed is None:
            return groups
        first = [group for group in groups if group.id == self._committed and self._possible(group)]
        if not first:
            self._committed = None
        return (*first, *groups)

    def _possible(self, group: Group) -> bool:
        left = group.count - group.pulled - self._taken.get(group.id, 0)
        return left > 0 and group.cls.model in self._models
