"""When which sessions need the time."""

import heapq
import itertools
from collections.abc import Iterator

from qlm.gateway.sessions.subscription import NEVER_NS, Subscription


class Timers:
    """Sessions by the time at which they are to be looked at: each has one entry that counts."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Subscription]] = []
        self._order = itertools.count()

    def schedule(self, subscription: Subscription) -> None:
        """Make sure that a session is looked at by the time of its next tick."""
        # An earlier entry will look at the session anyway.
        wake_ns = subscription.session.wake_ns
        if wake_ns < subscription.due_ns:
            subscription.due_ns = wake_ns
            heapq.heappush(self._entries, (wake_ns, next(self._order), subscription))

    def due(self, now_ns: int) -> Iterator[Subscription]:
        """Take the sessions whose time has come."""
        while self._entries and self._entries[0][0] <= now_ns:
            due_ns, _, subscription = heapq.heappop(self._entries)
            if due_ns != subscription.due_ns or subscription.session.over:
                continue  # an entry that a later one replaced
            subscription.due_ns = NEVER_NS
            if subscription.session.wake_ns <= now_ns:
                yield subscription
            else:
                self.schedule(subscription)
