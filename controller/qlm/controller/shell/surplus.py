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
"""Time per message for which a queue must have a surplus, or is not read again once messages were removed:
some thirty times what it takes to read one."""


class Counted(NamedTuple):
    """Requests of a class that wait, and that were ever accepted."""

    queued: int = 0
    accepted: int = 0


class _Surplus(NamedTuple):
    """How much longer a queue had a surplus than none, and the requests published by the latest check."""

    lasted_ns: int
    at_ns: int
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
        requests join has lasted long for the length of the queue. Pauses of queues that are gone are dropped.

        Args:
            depths: Messages of all class queues.
            counted: Requests of the classes with waiting ones.
            now_ns: The present.
        """
        surplus, before, self._surplus = more_than(depths, counted), self._surplus, {}
        self._pauses = {queue: pause for queue, pause in self._pauses.items() if queue in depths}
        found = set[QueueName]()
        for queue in surplus:
            depth, (queued, accepted) = depths[queue], counted.get(queue, Counted())
            last = before.pop(queue, None)
            lasted_ns = 0 if last is None else last.lasted_ns + now_ns - last.at_ns
            self._surplus[queue] = _Surplus(lasted_ns, now_ns, depth - queued + accepted)
            if last is None or self._pauses.get(queue, (0, 0))[0] > now_ns:
                continue
            if last.published > accepted or lasted_ns >= min(PATIENCE_NS * depth, PAUSE_MAX_NS):
                found.add(queue)
        for queue, last in before.items():
            # Requests that leave between the two counts hide a surplus for a moment.
            if (lasted_ns := last.lasted_ns - (now_ns - last.at_ns)) > 0:
                self._surplus[queue] = _Surplus(lasted_ns, now_ns, 0)
        return frozenset(found)

    def cleaned(self, queue: QueueName, *, messages: int, now_ns: int) -> None:
        """Note that a queue was read, which had only messages to be removed: of ended requests, for example.

        One that is cancelled every few seconds would have the queue read all the time; so the queue has a
        pause in proportion to the number of messages read.
        """
        pause_ns = min(PATIENCE_NS * messages, PAUSE_MAX_NS)
        self._pauses[queue] = (now_ns + pause_ns, PAUSE_NS // 2)

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
