"""Ends waiting requests whose message is in no queue: no agent will ever receive one.

A broker loses messages with its disk, or when an operator purges a queue. And a gateway that was cut off
indexes its request late: if that has been served, and the store has lost its record since, it waits once
more. Its client would wait for ever; now it gets `output_lost`, which says that a retry is safe.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qlm.broker.codec import letter_request_id
from qlm.broker.topology import DEAD
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.group import RequestClass
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import UNHEARD_MAX_S, Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import ControllerStore
from qlm.domain.view import ClassView, ClusterView

log = logging.getLogger("qlm.controller")

STUCK_NS: Final = 5_000_000_000
"""Time for which the oldest request of a class must have been passed over before its queue is read."""

AGAIN_NS: Final = (UNHEARD_MAX_S + 1) * 1_000_000_000
"""Time between two readings that must both miss a message: a process that has stopped may have it."""

PAUSE_NS: Final = 20_000_000_000
"""Time between the first two readings of a queue that miss nothing; it doubles each time."""

PAUSE_MAX_NS: Final = 600_000_000_000
"""Longest time between readings of a queue that miss nothing: one of 100 000 messages takes seconds."""

LETTERS_MAX: Final = 1000
"""Dead letters looked at, the oldest ones."""

DETAIL: Final = "the queue no longer has its message"


@dataclass(slots=True)
class _Watched:
    """The oldest waiting request of a class.

    Attributes:
        arrival_ns: Its arrival.
        left: Requests that had left the class when it became the oldest.
        read_at_ns: Time of the next reading.
        pause_ns: Time from a reading that misses nothing to the next.
        missing: Requests without a message in the last reading.
    """

    arrival_ns: int
    left: int
    read_at_ns: int
    pause_ns: int = PAUSE_NS
    missing: frozenset[RequestId] = frozenset()


class MissingMessages:
    """Watches the oldest request of each class; call `run` with each check."""

    def __init__(self, broker: Broker, store: ControllerStore, reindexer: Reindexer, clock: Clock) -> None:
        self._clock = clock
        self._broker = broker
        self._store = store
        self._reindexer = reindexer
        self._watched: dict[RequestClass, _Watched] = {}

    def forget(self) -> None:
        """Begin anew: the store was emptied."""
        self._watched.clear()

    async def run(self, view: ClusterView, depths: Mapping[QueueName, int], now_ns: int) -> int:
        """Read the queues that are due; return how many requests were ended.

        A queue is in order of arrival. So it is read if its class goes on without its oldest request, or if
        it is empty although requests wait.

        Raises:
            StoreUnavailableError, BrokerUnavailableError: Try again later.
        """
        before, self._watched, ended = self._watched, {}, 0
        for each in view.classes:
            arrival_ns = each.oldest_arrival_ns
            if arrival_ns is None:
                continue
            watched = before.get(each.cls)
            if watched is None or watched.arrival_ns != arrival_ns:
                watched = _Watched(arrival_ns, _left(each), now_ns + STUCK_NS)
            self._watched[each.cls] = watched
            stuck = watched.missing or _left(each) > watched.left or not depths.get(each.cls.queue)
            if stuck and now_ns >= watched.read_at_ns:
                ended += await self._read(each.cls, watched, view)
        return ended

    async def _read(self, cls: RequestClass, watched: _Watched, view: ClusterView) -> int:
        # The list comes first: what arrives while the queue is read is not in it.
        waiting = await self._store.waiting(cls)
        missing = frozenset(waiting) - (await self._reindexer.index(cls.queue)).ids
        if missing:
            missing -= await self._dead_letters_of(missing)
        now_ns = self._clock.now_ns()
        twice, watched.missing = watched.missing & missing, missing
        if not missing:
            watched.read_at_ns = now_ns + watched.pause_ns
            watched.pause_ns = min(2 * watched.pause_ns, PAUSE_MAX_NS)
            return 0
        watched.read_at_ns = now_ns + AGAIN_NS
        if not twice:
            await self._bring_back(cls, view)
            return 0
        # Until they have ended: if that fails, they are tried again at once, without those missed anew.
        watched.missing, watched.read_at_ns = twice, now_ns
        ended = await self._store.end_waiting(sorted(twice), Outcome.OUTPUT_LOST, DETAIL)
        watched.missing, watched.read_at_ns = missing - twice, now_ns + AGAIN_NS
        if ended:
            log.error("%s: %d requests waited without a message, and ended", cls.queue, len(ended))
        return len(ended)

    async def _dead_letters_of(self, ids: frozenset[RequestId]) -> frozenset[RequestId]:
        """Return those whose message is a dead letter, which an operator may put back at any time.

        A message that does not tell its id is none of them: it can only be deleted.
        """
        return ids.intersection(await self._broker.peek(DEAD, letter_request_id, LETTERS_MAX))

    async def _bring_back(self, cls: RequestClass, view: ClusterView) -> None:
        """Move messages that an interrupted demotion left in other queues of the model."""
        for other in view.classes:
            if other.cls.model == cls.model and other.cls != cls:
                await self._reindexer.index(other.cls.queue)


def _left(each: ClassView) -> int:
    return each.accepted - each.queued
