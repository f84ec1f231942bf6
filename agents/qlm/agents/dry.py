"""Class queues found empty: left alone for a moment, longer each time, so that they block nobody."""

from collections.abc import Iterable
from typing import Final

from qlm.domain.group import Group
from qlm.domain.ids import GroupId

FIRST_PAUSE_NS: Final = 50_000_000
PAUSE_MAX_NS: Final = 2_000_000_000


class DryGroups:
    """Groups whose class queue had less than asked, and until when they are not pulled for."""

    def __init__(self) -> None:
        self._pause_ns: dict[GroupId, int] = {}
        self._until_ns: dict[GroupId, int] = {}

    def empty(self, group: GroupId, now_ns: int) -> None:
        """Note that a pull came back short: leave the group alone, twice as long as the last time."""
        pause_ns = min(2 * self._pause_ns.get(group, FIRST_PAUSE_NS // 2), PAUSE_MAX_NS)
        self._pause_ns[group] = pause_ns
        self._until_ns[group] = now_ns + pause_ns

    def found(self, group: GroupId) -> None:
        """Note that a pull brought something: the next pause is short again."""
        self._pause_ns.pop(group, None)

    def put_off(self, group: GroupId | None, until_ns: int) -> None:
        """Leave a group alone until then, for another reason."""
        if group is not None:
            self._until_ns[group] = until_ns

    def until_ns(self, group: GroupId) -> int:
        """Until when the group is left alone; 0 if it was not put off."""
        return self._until_ns.get(group, 0)

    def keep(self, groups: Iterable[Group]) -> None:
        """Forget all other groups."""
        if not self._until_ns:
            return
        kept = {group.id for group in groups}
        for known in (self._pause_ns, self._until_ns):
            for group in known.keys() - kept:
                del known[group]
