"""What keeps queue and state in line when something died: leases, hold queues, and the index itself.

Three repairs, each cheap when nothing is wrong: leases of dead holders are released, hold queues of dead
instances emptied, and a class queue that holds more than the store knows of is indexed anew (the store
was emptied, or an accepted request never reached it).
"""

import logging
from collections.abc import Collection, Mapping
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

YOUNG_NS: Final = 2_000_000_000
"""An emptied store is given this long to hear from live instances, which beat once a second: what they have
just registered again is not to be taken from them."""


class Upkeep:
    """Looks for repairs; call `run` with each view."""

    def __init__(self, *, broker: Broker, store: Store, clock: Clock) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._reindexer = Reindexer(broker, store, clock)
        self._alive: set[Holder] = set()
        self._next_ns = 0
        self._incarnation: int | None = None
        self._young_until_ns = 0
        self._more_than_known: set[QueueName] = set()

    async def run(self, view: ClusterView, term: Term | None = None) -> bool:
        """Repair what needs it; True if the view is out of date now.

        The store is asked under the term of the controller. Should it not lead any more, the
        rest is harmless: messages are moved and indexed as whoever leads then would, and a message that is
        there twice finds its request leased or ended.

        Raises:
            NotLeadingError: Another controller leads.
            StoreUnavailableError, BrokerUnavailableError: Try again later.
        """
        now_ns = self._clock.now_ns()
        alive = {status.holder for status in view.instances}
        emptied = term is not None and self.is_new(term.incarnation)
        if emptied:
            self._young_until_ns = now_ns + YOUNG_NS
        elif alive == self._alive and now_ns < self._next_ns:
            return False
        young = now_ns < self._young_until_ns
        self._next_ns = self._young_until_ns if young else now_ns + PERIOD_NS
        self._alive = alive
        changed = False if young else await self._bury(alive, term)
        found = await self._index_unknown({each.cls.queue: each.queued for each in view.classes}, emptied)
        return bool(changed or found)

    def is_new(self, incarnation: int) -> bool:
        """Note the store's identity; True if it was emptied since it was last noted."""
        former, self._incarnation = self._incarnation, incarnation
        return former is not None and incarnation != former

    async def _bury(self, alive: Collection[Holder], term: Term | None) -> bool:
        """Let what dead instances had in hand wait again; True if there was anything."""
        released = await self._store.reap(term)
        moved = await self._reindexer.empty_hold_queues({holder.instance for holder in alive})
        if released or moved:
            log.warning("lost instances: %d requests wait again, %d messages moved", len(released), moved)
        return bool(released or moved)

    async def _index_unknown(self, queued: Mapping[QueueName, int], emptied: bool) -> int:
        """Index queues that hold more messages than the store has waiting requests.

        Twice in a row, unless the store was just emptied: once is normal, for a request is published before
        it is indexed, returned before it is released.
        """
        more = set()
        for queue in await self._reindexer.class_queues():
            if await self._broker.depth(queue) > queued.get(queue, 0):
                more.add(queue)
        confirmed = more if emptied else more & self._more_than_known
        self._more_than_known = more
        found = 0
        for queue in sorted(confirmed):
            found += await self._reindexer.index(queue)
            log.warning("%s held more than was known of it: %d requests indexed", queue, found)
        return found
