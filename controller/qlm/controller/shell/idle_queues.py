"""Choice of the class queues to delete because nothing has waited there for a while."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from qlm.domain.ids import QueueName

IDLE_NS: Final = 60_000_000_000
"""Time for which a queue has no message and its class no request that waits and no group."""

AT_ONCE: Final = 32
"""Queues deleted at once: a client that wants to use one meanwhile waits for all of them."""


class IdleQueues:
    """Class queues without work, with the time since which they have none."""

    def __init__(self) -> None:
        self._since_ns: dict[QueueName, int] = {}

    def due(
        self, depths: Mapping[QueueName, int], in_use: Collection[QueueName], now_ns: int
    ) -> Sequence[QueueName]:
        """Return the queues to delete; each is idle anew after it was returned."""
        idle = [queue for queue, depth in depths.items() if not depth and queue not in in_use]
        self._since_ns = {queue: self._since_ns.get(queue, now_ns) for queue in idle}
        due = [queue for queue in idle if now_ns - self._since_ns[queue] >= IDLE_NS][:AT_ONCE]
        for queue in due:
            self._since_ns[queue] = now_ns
        return due
