"""Choice of the class queues to read because they seem to hold messages that the store does not know.

The depth of a queue and the waiting requests of the store are counted at different times. Under load they
differ in each check although nothing is wrong, and a queue of 100 000 messages takes seconds to read.
"""

from collections.abc import Mapping
from typing import Final

from qlm.domain.ids import QueueName

PAUSE_NS: Final = 4_000_000_000
"""Time without another look at a queue that was read without a repair; it doubles each time."""

PAUSE_MAX_NS: Final = 600_000_000_000


class SurplusWatch:
    """Queues with more messages than waiting requests, and those that were read without a repair."""

    def __init__(self) -> None:
        self._surplus: frozenset[QueueName] = frozenset()
        self._pauses: dict[QueueName, tuple[int, int]] = {}

    def suspects(
        self, depths: Mapping[QueueName, int], queued: Mapping[QueueName, int], now_ns: int
    ) -> frozenset[QueueName]:
        """Return the queues with a surplus in this check and the one before, unless they have a pause."""
        surplus = more_than(depths, queued)
        twice, self._surplus = surplus & self._surplus, surplus
        return frozenset(queue for queue in twice if self._pauses.get(queue, (0, 0))[0] <= now_ns)

    def read(self, queue: QueueName, *, repaired: bool, now_ns: int) -> None:
        """Note that a queue was read, and whether anything had to be repaired."""
        if repaired:
            self._pauses.pop(queue, None)
            return
        _, former_ns = self._pauses.get(queue, (0, PAUSE_NS // 2))
        pause_ns = min(2 * former_ns, PAUSE_MAX_NS)
        self._pauses[queue] = (now_ns + pause_ns, pause_ns)


def more_than(depths: Mapping[QueueName, int], queued: Mapping[QueueName, int]) -> frozenset[QueueName]:
    """Return the queues with more messages than waiting requests."""
    return frozenset(queue for queue, depth in depths.items() if depth > queued.get(queue, 0))
