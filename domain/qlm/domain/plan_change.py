"""Changes to groups and virtual queues, as values: what the controller writes."""

from dataclasses import dataclass

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Form a group of the next `count` waiting requests of a class that no group covers."""

    id: GroupId
    cls: RequestClass
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeGroup:
    """Let a group cover `count` requests in all (pulled ones included), and seal it or not."""

    id: GroupId
    count: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGroup:
    """Forget a group; requests it still covers become ungrouped."""

    id: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQueue:
    """Replace the order of one instance's virtual queue. Unknown or closed groups are left out."""

    instance: InstanceId
    groups: tuple[GroupId, ...]


PlanChange = CreateGroup | ResizeGroup | CloseGroup | SetQueue
