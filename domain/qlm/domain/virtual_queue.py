"""The virtual queue of one instance: the order in which it serves request groups (QLM, definition 4.2)."""

from collections import Counter

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group
from qlm.domain.ids import InstanceId
from qlm.domain.values import value


@value
class VirtualQueue:
    """Groups in the order in which one instance pulls from them.

    Attributes:
        instance: The instance.
        version: Grows with each change of the order.
        groups: Groups, first served first.
    """

    instance: InstanceId
    version: int = 0
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if len({group.id for group in self.groups}) < len(self.groups):
            twice = [group for group, times in Counter(g.id for g in self.groups).items() if times > 1]
            raise InvalidValueError("virtual_queue.groups", twice, "each group at most once")
