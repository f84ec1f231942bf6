"""Reconciles store and broker after failures: leases, hold queues, and the index of waiting requests.

It also has queues deleted in which nothing has waited for a while. Four repairs, each cheap when nothing is
wrong:

* leases of dead holders are released;
* hold queues of dead instances are emptied;
* a class queue with more messages than the store knows is indexed again (an accepted request never reached
  the store);
* waiting requests without a message end (`missing_messages`).

An empty store is filled from all class queues, then marked as indexed. Until then, no component treats an
unknown request as one that never existed.
"""

import logging
from collections.abc import Mapping
from typing import Final

from qlm.controller.shell.idle_queues import IdleQueues
from qlm.controller.shell.missing_messages import MissingMessages
from qlm.controller.shell.reindex import Reindexer
from qlm.controller.shell.surplus import Counted, SurplusWatch, more_than
from qlm.domain.ids import InstanceId, QueueName
from qlm.domain.leadership import Term
from qlm.domain.lease import Holder
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import ControllerStore
from qlm.domain.view import ClusterView

log = logging.getLogger("qlm.controller")

PERIOD_NS: Final = 2_000_000_000
"""Period of the checks; they also run when the set of live instances changes."""

GRACE_NS: Final = 2_000_000_000
"""Grace period of a store that was emptied or not reached: live instances send a heartbeat once per second
and register their leases again, which must not be reclaimed."""


class Reconciler:
    """Repairs store and broker; call `run` with each view."""

    def __init__(self, *, broker: Broker, store: ControllerStore, clock: Clock) -> None:
        self._broker = broker
        self._store = store
        self._clock = clock
        self._reindexer = Reindexer(broker, store, clock)
        self._seen: set[Holder] = set()
        self._alive: set[Holder] = set()
        self._gone: set[InstanceId] = set()
        self._next_ns = 0
        self._incarnation: int | None = None
        self._unread = False
        self._unmarked = False
        self._grace_until_ns = 0
        self._gives_time = False
        self._surplus = SurplusWatch()
        self._missing = MissingMessages(broker, store, self._reindexer, clock)
        self._idle = IdleQueues()

    def give_time(self) -> None:
        """Give instances the time for a heartbeat before the next look for dead ones.

        What kept the controller from the store may have kept their heartbeats from it, until all of them had
        lapsed; the controller may be the first that goes on.
        """
        self._gives_time = True

    async def run(self, view: ClusterView, term: Term | None = None) -> bool:
        """Run the repairs that are due; return True if the view is outdated now.

        Changes to the store need the term of the controller. If it no longer leads, the rest is harmless: a
        new leader would move and index the same messages, and the request of a duplicate message is found
        leased or ended.

        Raises:
            NotLeadingError: Another controller leads.
            StoreUnavailableError, BrokerUnavailableError: Try again later.
        """
        now_ns = self._clock.now_ns()
        alive = {status.holder for status in view.instances}
        empty = term is not None and await self._is_empty(term.incarnation)
        if empty or self._gives_time:
            self._gives_time = False
            self._grace_until_ns = now_ns + GRACE_NS
        elif alive == self._seen and now_ns < self._next_ns:
            return False
        in_grace = now_ns < self._grace_until_ns
        self._next_ns = self._grace_until_ns if in_grace else now_ns + PERIOD_NS
        self._seen = alive
        changed = False if in_grace else await self._reclaim(alive, term)
        found = await self._index(view, now_ns)
        if term is not None and self._unmarked and not in_grace:
            await self._store.mark_indexed(term)
            self._unmarked = False
        return bool(changed or found)

    def _note_gone(self, alive: set[Holder]) -> None:
        """Note the live instances, and log those that have gone since."""
        names = {holder.instance for holder in self._alive - alive} - {holder.instance for holder in alive}
        if names:
            log.info("gone: %s", ", ".join(sorted(names)))
        self._gone |= names
        self._alive = alive

    async def _is_empty(self, incarnation: int) -> bool:
        """Note the store's incarnation; return True if it is a new one that was not indexed yet.

        It is the first one or was emptied, and no leader has finished indexing since.
        """
        if incarnation == self._incarnation:
            return False
        self._unread = self._unmarked = not await self._store.indexed()
        self._missing.forget()
        self._incarnation = incarnation
        return self._unread

    async def _index(self, view: ClusterView, now_ns: int) -> int:
        if not self._unread:
            return await self._check_queues(view, now_ns)
        found = await self._reindexer.index_all()
        self._unread = False
        if found:
            log.info("the shared state was empty: %d requests indexed", found)
        return found

    async def _reclaim(self, alive: set[Holder], term: Term | None) -> bool:
        """Return the requests and messages of dead instances to their queues; True if there were any."""
        released = await self._store.expire_leases(term)
        self._note_gone(alive)  # a controller that led until it stood still has been told so by now
        moved = await self._reindexer.empty_hold_queues({holder.instance for holder in alive})
        if released or moved:
            names = ", ".join(sorted(self._gone)) or "of another time"
            log.warning(
                "lost instances (%s): %d requests wait again, %d messages moved", names, len(released), moved
            )
        self._gone.clear()
        return bool(released or moved)

    async def _check_queues(self, view: ClusterView, now_ns: int) -> int:
        """Repair what differs between class queues and waiting requests; return the number of repairs."""
        counted = _counted(view)
        depths = {queue: await self._broker.depth(queue) for queue in await self._reindexer.class_queues()}
        found = await self._index_unknown(depths, counted, now_ns)
        if not self._unmarked:
            await self._delete_idle(depths, {queue: each.queued for queue, each in counted.items()}, now_ns)
            found += await self._missing.run(view, depths, now_ns)
        return found

    async def _index_unknown(
        self, depths: Mapping[QueueName, int], counted: Mapping[QueueName, Counted], now_ns: int
    ) -> int:
        """Index queues that hold more messages than the store has waiting requests.

        It takes two checks in a row or more, unless the store was just emptied. Once is normal: a request is
        published before it is indexed, and returned before its lease is released.
        """
        suspects = self._surplus.suspects(depths, counted, now_ns)
        if self._unmarked:
            suspects = more_than(depths, counted)
        elif suspects:
            # Requests may have arrived between the view and the depths; a later view has them.
            suspects &= more_than(depths, _counted(await self._store.view()))
        found = 0
        for queue in sorted(suspects):
            read = await self._reindexer.index(queue)
            if read.removed and not read.indexed:
                self._surplus.cleaned(queue, messages=len(read.ids), now_ns=now_ns)
            else:
                self._surplus.read(queue, repaired=read.indexed > 0, now_ns=now_ns)
            found += read.repairs
            if read.repairs:
                text = "%s: %d unknown requests indexed, %d messages removed"
                log.warning(text, queue, read.indexed, read.removed)
        return found

    async def _delete_idle(
        self, depths: Mapping[QueueName, int], queued: Mapping[QueueName, int], now_ns: int
    ) -> None:
        if due := self._idle.due(depths, queued, now_ns):
            gone = await self._broker.delete_unused(due)
            log.debug("idle queues deleted: %s", ", ".join(gone))


def _counted(view: ClusterView) -> dict[QueueName, Counted]:
    return {each.cls.queue: Counted(each.queued, each.accepted) for each in view.classes}
