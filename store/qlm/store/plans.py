"""Operations on groups and virtual queues."""

from collections.abc import Sequence

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.leadership import Term
from qlm.domain.notices import QueueChanged
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup, SetQueue
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store.effects import Effects
from qlm.store.instances import InstanceOps
from qlm.store.tables import ClassRow, GroupRow, QueueRow

Changed = dict[InstanceId, None]
"""Instances whose queue changed, in order of the first change."""


def check_changes(changes: Sequence[PlanChange]) -> None:
    """Refuse changes that no store can apply.

    Raises:
        InvalidValueError: A count is negative.
    """
    for change in changes:
        if isinstance(change, CreateGroup | ResizeGroup) and change.count < 0:
            raise InvalidValueError("plan_change.count", change.count, "0 or more")


def class_order(cls: RequestClass) -> tuple[str, str, str, int, float, bool]:
    """Key that sorts classes, whether or not they have a target."""
    target_ms = -1.0 if cls.target_ms is None else cls.target_ms
    return (cls.model, cls.slo, cls.cluster, cls.priority, target_ms, cls.late)


def spread(count: int, total: int, squares: int) -> tuple[float, float]:
    """Mean and variance of `count` whole numbers, from their sum and the sum of their squares.

    A Redis that an earlier version has counted in has no squares of those numbers: their variance is 0.
    """
    if not count:
        return 0.0, 0.0
    return total / count, max(0, count * squares - total * total) / (count * count)


class PlanOps(InstanceOps):
    """The planning part of the core; each method is the `Store` method of its name."""

    def apply(
        self, changes: Sequence[PlanChange], now_ns: int, term: Term | None = None
    ) -> tuple[None, Effects]:
        """Apply plan changes in order, and notify each instance whose queue changed."""
        check_changes(changes)
        self.check_term(term, now_ns)
        changed: Changed = {}
        for change in changes:
            match change:
                case CreateGroup():
                    self._create_group(change, now_ns)
                case ResizeGroup():
                    self._resize_group(change, changed)
                case CloseGroup():
                    self._close_group(change.id, changed)
                case SetQueue():
                    self._set_queue(change, changed)
        return None, Effects(notices=[(instance, QueueChanged()) for instance in changed])

    def _create_group(self, change: CreateGroup, now_ns: int) -> None:
        if change.id in self._groups:
            return
        cls = self._class(change.cls)
        group = GroupRow(change.id, cls, seq=cls.next_seq, count=change.count, created_ns=now_ns)
        cls.next_seq += 1
        cls.groups.append(group)
        self._groups[change.id] = group

    def _resize_group(self, change: ResizeGroup, changed: Changed) -> None:
        group = self._groups.get(change.id)
        if group is None:
            return
        group.count, group.sealed = max(change.count, group.pulled), change.sealed
        if group.queue is not None:
            changed[group.queue] = None

    def _close_group(self, id: GroupId, changed: Changed) -> None:
        group = self._groups.pop(id, None)
        if group is None:
            return
        group.cls.groups.remove(group)
        self._take_off_queue(group, changed)

    def _take_off_queue(self, group: GroupRow, changed: Changed) -> None:
        if group.queue is None:
            return
        queue = self._queues[group.queue]
        queue.groups.remove(group.id)
        queue.version += 1
        changed[group.queue] = None
        group.queue = None

    def _set_queue(self, change: SetQueue, changed: Changed) -> None:
        order = [id for id in dict.fromkeys(change.groups) if id in self._groups]
        queue = self._queues.get(change.instance, QueueRow())
        if order == queue.groups:
            return
        self._queues[change.instance] = queue
        for id in order:
            if self._groups[id].queue != change.instance:
                self._take_off_queue(self._groups[id], changed)
        for id in queue.groups:
            self._groups[id].queue = None
        for id in order:
            self._groups[id].queue = change.instance
        queue.groups = order
        queue.version += 1
        changed[change.instance] = None

    def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        queue = self._queues.get(instance)
        if queue is None:
            return VirtualQueue(instance=instance)
        groups: dict[GroupId, Group] = {}
        for id in queue.groups:
            if id not in groups:
                groups.update(self._groups[id].cls.groups_of(instance))
        return _queue_value(instance, queue, groups)

    def view(self, now_ns: int) -> ClusterView:
        """Read classes, groups, live instances and virtual queues at one moment."""
        rows = [row for row in self._classes.values() if row.groups or len(row.waiting)]
        rows.sort(key=lambda row: class_order(row.cls))
        classes = tuple(_class_view(row) for row in rows)
        groups = {group.id: group for view in classes for group in view.groups}
        queues = sorted(self._queues.items())
        return ClusterView(
            classes=classes,
            instances=self.live_instances(now_ns),
            queues=tuple(_queue_value(instance, queue, groups) for instance, queue in queues),
            leased={instance: count for instance, count in sorted(self._leased.items()) if count},
        )


def _queue_value(instance: InstanceId, queue: QueueRow, groups: dict[GroupId, Group]) -> VirtualQueue:
    ordered = tuple([groups[id] for id in queue.groups])
    return VirtualQueue(instance=instance, version=queue.version, groups=ordered)


def _class_view(row: ClassRow) -> ClassView:
    groups, ungrouped_arrival_ns = row.sliced()
    queued = len(row.waiting)
    mean_prompt_tokens, var_prompt_tokens = spread(row.accepted, row.prompt_tokens, row.prompt_squares)
    mean_max_tokens, var_max_tokens = spread(row.accepted, row.max_tokens, row.max_squares)
    return ClassView(
        cls=row.cls,
        queued=queued,
        groups=groups,
        ungrouped_arrival_ns=ungrouped_arrival_ns,
        newest_arrival_ns=row.waiting.arrival_ns(queued - 1) if queued else None,
        accepted=row.accepted,
        mean_prompt_tokens=mean_prompt_tokens,
        var_prompt_tokens=var_prompt_tokens,
        mean_max_tokens=mean_max_tokens,
        var_max_tokens=var_max_tokens,
        finished=row.finished,
        lengths=row.lengths.value,
    )
