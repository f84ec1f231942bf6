"""What keeps queue and state in line when something died: leases, hold queues, and the index itself.

Three repairs, each cheap when nothing is wrong: leases of dead holders are released, hold queues of dead
instances emptied, and a class queue that holds more than the store knows of is indexed anew (the store
was emptied, or an accepted request never reached it).
"""

import logging
from collections.abc import Mapping
from typing import Final

from qlm.controller.reindex import Reindexer
from qlm.domain.ids import QueueName
from qlm.domain.leadership import Term
from qlm.domain.lease import Holder
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.view import ClusterView

log = logging.getLogger("qlm.controller")

PERIOD_NS: Final = 2_000_000_000
"""Repairs are looked for this often, and whenever an instance comes or goes."""


class Upkeep:
    """Looks for repairs; call `run` with each view."""

    def __init__(self, *, broker: Broker, store: Store, clock: Clock) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._reindexer = Reindexer(broker, store, clock)
        self._alive: set[Holder] = set()
        self._next_ns = 0
        self._more_than_known: set[QueueName] = set()

    async def run(self, view: ClusterView, term: Term | None = None) -> bool:
        """Repair what needs it; True if the view is out of date now.

        The store is asked first, under the term of the controller. Should it lose the lead after that, the
        rest is harmless: messages are moved and indexed as whoever leads then would, and a message that is
        there twice finds its request leased or ended.

        Raises:
            NotLeadingError: Another controller leads.
            StoreUnavailableError, BrokerUnavailableError: Try again later.
        """
        now_ns = self._clock.now_ns()
        alive = {status.holder for status in view.instances}
        if alive == self._alive and now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + PERIOD_NS
        self._alive = alive
        released = await self._store.reap(term)
        moved = await self._reindexer.empty_hold_queues({holder.instance for holder in alive})
        if released or moved:
            log.warning("lost instances: %d requests wait again, %d messages moved", len(released), moved)
        found = await self._index_unknown({each.cls.queue: each.queued for each in view.classes})
        return bool(released or moved or found)

    async def _index_unknown(self, queued: Mapping[QueueName, int]) -> int:
        """Index queues that twice in a row held more messages than the store has waiting requests.

        Once is normal: a request is published before it is indexed, returned before it is released.
        """
        more = set()
        for queue in await self._reindexer.class_queues():
            if await self._broker.depth(queue) > queued.get(queue, 0):
                more.add(queue)
        confirmed, self._more_than_known = more & self._more_than_known, more
        found = 0
        for queue in sorted(confirmed):
            found += await self._reindexer.index(queue)
            log.warning("%s held more than was known of it: %d requests indexed", queue, found)
        return found
