"""Changes of groups and virtual queues that the controller writes, as values."""

from dataclasses import dataclass

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.virtual_queue import ClassForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Create a group of the next `count` ungrouped waiting requests of a class."""

    id: GroupId
    cls: RequestClass
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeGroup:
    """Set the total number of requests that a group covers (pulled ones included), and its seal."""

    id: GroupId
    count: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGroup:
    """Delete a group; requests it still covers become ungrouped."""

    id: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQueue:
    """Replace the virtual queue of one instance; unknown or closed groups are left out."""

    instance: InstanceId
    groups: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetForecasts:
    """Replace what the plan expects of the classes on one instance."""

    instance: InstanceId
    forecasts: tuple[ClassForecast, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetHomes:
    """Replace the models that the placement gives one instance, the one with the most arrivals first."""

    instance: InstanceId
    models: tuple[ModelId, ...]


PlanChange = CreateGroup | ResizeGroup | CloseGroup | SetQueue | SetForecasts | SetHomes
