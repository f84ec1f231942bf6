"""What keeps queue and state in line when something died: leases, hold queues, and the index itself.

Three repairs, each cheap when nothing is wrong: leases of dead holders are released, hold queues of dead
instances emptied, and a class queue that holds more than the store knows of is indexed anew (an accepted
request never reached it). A store that is empty is filled from all class queues, and once that is done it is
marked: until then nobody takes a request that it does not know for one that never was.
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
        self._unread = False
        self._unmarked = False
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
        if term is not None and await self._is_empty(term.incarnation):
            self._young_until_ns = now_ns + YOUNG_NS
        elif alive == self._alive and now_ns < self._next_ns:
            return False
        young = now_ns < self._young_until_ns
        self._next_ns = self._young_until_ns if young else now_ns + PERIOD_NS
        self._alive = alive
        changed = False if young else await self._bury(alive, term)
        found = await self._index({each.cls.queue: each.queued for each in view.classes})
        if term is not None and self._unmarked and not young:
            await self._store.mark_indexed(term)
            self._unmarked = False
        return bool(changed or found)

    async def _is_empty(self, incarnation: int) -> bool:
        """Note the store's identity; True if it is another than before, and the queue was not read into it.

        It was emptied, then, or is the first one; and whoever has led since has not come to the end of it.
        """
        if incarnation == self._incarnation:
            return False
        self._unread = self._unmarked = not await self._store.indexed()
        self._incarnation = incarnation
        return self._unread

    async def _index(self, queued: Mapping[QueueName, int]) -> int:
        if not self._unread:
            return await self._index_unknown(queued)
        found = await self._reindexer.index_all()
        self._unread = False
        if found:
            log.info("the shared state was empty: %d requests indexed", found)
        return found

    async def _bury(self, alive: Collection[Holder], term: Term | None) -> bool:
        """Let what dead instances had in hand wait again; True if there was anything."""
        released = await self._store.reap(term)
        moved = await self._reindexer.empty_hold_queues({holder.instance for holder in alive})
        if released or moved:
            log.warning("lost instances: %d requests wait again, %d messages moved", len(released), moved)
        return bool(released or moved)

    async def _index_unknown(self, queued: Mapping[QueueName, int]) -> int:
        """Index queues that hold more messages than the store has waiting requests.

        Twice in a row, unless the store was just emptied: once is normal, for a request is published before
        it is indexed, returned before it is released.
        """
        more = set()
        for queue in await self._reindexer.class_queues():
            if await self._broker.depth(queue) > queued.get(queue, 0):
                more.add(queue)
        confirmed = more if self._unmarked else more & self._more_than_known
        self._more_than_known = more
        found = 0
        for queue in sorted(confirmed):
            found += await self._reindexer.index(queue)
            log.warning("%s held more than was known of it: %d requests indexed", queue, found)
        return found
