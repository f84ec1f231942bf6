"""Choice of the class queues to read because they seem to hold messages that the store does not know.

The depth of a queue and the waiting requests of the store are counted at different times. Under load they
differ in each check although nothing is wrong: a gateway publishes a request before it indexes it. And a
reading takes long for a long queue, of which no agent gets a message meanwhile.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from qlm.domain.ids import QueueName

PAUSE_NS: Final = 4_000_000_000
"""Time without another look at a queue that was read without a repair; it doubles each time."""

PAUSE_MAX_NS: Final = 600_000_000_000

PATIENCE_NS: Final = 30_000_000
"""Time per message of a queue for which it must have a surplus in each check: some thirty times what it takes
to read one."""


class Counted(NamedTuple):
    """Requests of a class that wait, and that were ever accepted."""

    queued: int = 0
    accepted: int = 0


class _Surplus(NamedTuple):
    """Time of the first of consecutive checks with a surplus; the requests ever published as of the last."""

    since_ns: int
    published: int


class SurplusWatch:
    """Queues with more messages than waiting requests, and those that were read without a repair."""

    def __init__(self) -> None:
        self._surplus: dict[QueueName, _Surplus] = {}
        self._pauses: dict[QueueName, tuple[int, int]] = {}

    def suspects(
        self, depths: Mapping[QueueName, int], counted: Mapping[QueueName, Counted], now_ns: int
    ) -> frozenset[QueueName]:
        """Return the queues with a surplus in this check and the one before, unless they have a pause.

        Either messages of the check before are still unknown, or the surplus of a queue that more and more
        requests join has lasted long for the length of the queue.
        """
        before, self._surplus, found = self._surplus, {}, set[QueueName]()
        for queue in more_than(depths, counted):
            depth, (queued, accepted) = depths[queue], counted.get(queue, Counted())
            last = before.get(queue)
            since_ns = now_ns if last is None else last.since_ns
            self._surplus[queue] = _Surplus(since_ns, depth - queued + accepted)
            if last is None or self._pauses.get(queue, (0, 0))[0] > now_ns:
                continue
            if last.published > accepted or now_ns - since_ns >= PATIENCE_NS * depth:
                found.add(queue)
        return frozenset(found)

    def read(self, queue: QueueName, *, repaired: bool, now_ns: int) -> None:
        """Note that a queue was read, and whether anything had to be repaired."""
        if repaired:
            self._pauses.pop(queue, None)
            return
        _, former_ns = self._pauses.get(queue, (0, PAUSE_NS // 2))
        pause_ns = min(2 * former_ns, PAUSE_MAX_NS)
        self._pauses[queue] = (now_ns + pause_ns, pause_ns)


def more_than(depths: Mapping[QueueName, int], counted: Mapping[QueueName, Counted]) -> frozenset[QueueName]:
    """Return the queues with more messages than waiting requests."""
    return frozenset(queue for queue, depth in depths.items() if depth > counted.get(queue, Counted()).queued)
