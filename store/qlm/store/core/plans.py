"""Operations on groups and virtual queues."""

from collections.abc import Sequence

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.notices import QueueChanged
from qlm.domain.plan_change import (
    CloseGroup,
    CreateGroup,
    PlanChange,
    ResizeGroup,
    SetForecasts,
    SetHomes,
    SetQueue,
)
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.store.core.effects import Effects
from qlm.store.core.instances import live_instances
from qlm.store.core.state import State
from qlm.store.core.tables import ClassRow, GroupRow, QueueRow

Changed = dict[InstanceId, None]
"""Instances whose queue changed, in order of the first change."""


def check_changes(changes: Sequence[PlanChange]) -> None:
    """Reject changes that no store can apply.

    Raises:
        InvalidValueError: A count is negative.
    """
    for change in changes:
        if isinstance(change, CreateGroup | ResizeGroup) and change.count < 0:
            raise InvalidValueError("plan_change.count", change.count, "0 or more")


def class_order(cls: RequestClass) -> tuple[str, str, str, int, float, bool]:
    """Return a sort key of classes; some have no target, and None does not compare."""
    target_ms = -1.0 if cls.target_ms is None else cls.target_ms
    return (cls.model, cls.slo, cls.cluster, cls.priority, target_ms, cls.late)


def mean_and_variance(count: int, total: int, squares: int) -> tuple[float, float]:
    """Return mean and variance of `count` whole numbers, from their sum and the sum of their squares."""
    if not count:
        return 0.0, 0.0
    # Earlier versions kept no sum of squares in Redis: without it the variance is 0, not negative.
    return total / count, max(0, count * squares - total * total) / (count * count)


def apply(state: State, changes: Sequence[PlanChange], now_ns: int) -> tuple[None, Effects]:
    changed: Changed = {}
    for change in changes:
        match change:
            case CreateGroup():
                _create_group(state, change, now_ns)
            case ResizeGroup():
                _resize_group(state, change, changed)
            case CloseGroup():
                _close_group(state, change.id, changed)
            case SetQueue():
                _set_queue(state, change, changed)
            case SetForecasts():
                queue = state.queues.setdefault(change.instance, QueueRow())
                queue.forecasts = change.forecasts
                changed[change.instance] = None
            case SetHomes():
                queue = state.queues.setdefault(change.instance, QueueRow())
                queue.homes = change.models
                changed[change.instance] = None
    return None, Effects(notices=[(instance, QueueChanged()) for instance in changed])


def _create_group(state: State, change: CreateGroup, now_ns: int) -> None:
    if change.id in state.groups:
        return
    cls = state.class_row(change.cls)
    group = GroupRow(change.id, cls, seq=cls.next_seq, count=change.count, created_ns=now_ns)
    cls.next_seq += 1
    cls.groups.append(group)
    state.groups[change.id] = group


def _resize_group(state: State, change: ResizeGroup, changed: Changed) -> None:
    group = state.groups.get(change.id)
    if group is None:
        return
    group.count, group.sealed = max(change.count, group.pulled), change.sealed
    if group.queue is not None:
        changed[group.queue] = None


def _close_group(state: State, id: GroupId, changed: Changed) -> None:
    group = state.groups.pop(id, None)
    if group is None:
        return
    group.cls.groups.remove(group)
    _take_off_queue(state, group, changed)


def _take_off_queue(state: State, group: GroupRow, changed: Changed) -> None:
    if group.queue is None:
        return
    queue = state.queues[group.queue]
    queue.groups.remove(group.id)
    queue.version += 1
    changed[group.queue] = None
    group.queue = None


def _set_queue(state: State, change: SetQueue, changed: Changed) -> None:
    order = [id for id in dict.fromkeys(change.groups) if id in state.groups]
    queue = state.queues.get(change.instance, QueueRow())
    if order == queue.groups:
        return
    state.queues[change.instance] = queue
    for id in order:
        if state.groups[id].queue != change.instance:
            _take_off_queue(state, state.groups[id], changed)
    for id in queue.groups:
        state.groups[id].queue = None
    for id in order:
        state.groups[id].queue = change.instance
    queue.groups = order
    queue.version += 1
    changed[change.instance] = None


def virtual_queue(state: State, instance: InstanceId) -> VirtualQueue:
    queue = state.queues.get(instance)
    if queue is None:
        return VirtualQueue(instance=instance)
    groups: dict[GroupId, Group] = {}
    counts: dict[ClassRow, int] = {}
    for id in queue.groups:
        cls = state.groups[id].cls
        counts[cls] = counts.get(cls, 0) + 1
    for cls, count in counts.items():
        groups.update(cls.groups_of(instance, count))
    return _queue_value(instance, queue, groups)


def view(state: State, now_ns: int) -> ClusterView:
    rows = state.classes.in_use(now_ns, state.limits.result_ttl_ns)
    rows.sort(key=lambda row: class_order(row.cls))
    classes = tuple(_class_view(row) for row in rows)
    groups = {group.id: group for view in classes for group in view.groups}
    queues = sorted(state.queues.items())
    return ClusterView(
        classes=classes,
        instances=live_instances(state, now_ns),
        queues=tuple(_queue_value(instance, queue, groups) for instance, queue in queues),
        leased={instance: count for instance, count in sorted(state.leases.by_instance.items()) if count},
    )


def _queue_value(instance: InstanceId, queue: QueueRow, groups: dict[GroupId, Group]) -> VirtualQueue:
    return queue.value(instance, tuple([groups[id] for id in queue.groups]))


def _class_view(row: ClassRow) -> ClassView:
    groups, ungrouped_arrival_ns = row.sliced()
    queued = len(row.waiting)
    mean_prompt_tokens, var_prompt_tokens = mean_and_variance(
        row.accepted, row.prompt_tokens, row.prompt_squares
    )
    mean_max_tokens, var_max_tokens = mean_and_variance(row.accepted, row.max_tokens, row.max_squares)
    return ClassView(
        cls=row.cls,
        queued=queued,
        groups=groups,
        ungrouped_arrival_ns=ungrouped_arrival_ns,
        newest_arrival_ns=row.waiting.arrival_ns(queued - 1) if queued else None,
        accepted=row.accepted,
        kept=row.kept,
        mean_prompt_tokens=mean_prompt_tokens,
        var_prompt_tokens=var_prompt_tokens,
        mean_max_tokens=mean_max_tokens,
        var_max_tokens=var_max_tokens,
        prompts=tuple(row.prompts),
        finished=row.finished,
        lengths=row.lengths.value,
        extensions=row.extensions,
    )
