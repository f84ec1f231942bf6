"""Store calls on behalf of subscriptions: index, watch, read, cancel."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from qlm.domain.attainment import UNDECIDED, Attainment, recorded_attainment
from qlm.domain.errors import QlmError, StoreEmptiedError, UnavailableError
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.core.session_events import FetchFailed, OutputFetched, SendFinal
from qlm.gateway.sessions.subscription import Subscription

_log = logging.getLogger(__name__)

READS_MAX: Final = 64
"""Concurrent reads; after a lost connection every open request is read."""

WATCH_AGAIN_NS: Final = 10_000_000_000
"""Time after which a request without output is watched again: what names it in the store may be lost."""

UNWATCH_TIMEOUT_S: Final = 2.0
"""Time limit for a gateway that stops to remove itself as a watcher of its requests."""

RECORD_TIMEOUT_S: Final = 2.0
"""Time limit for the record of an answer whose client waits for its end."""


class OutputStore:
    """The store as the subscriptions of one gateway use it."""

    def __init__(self, store: GatewayStore, clock: Clock, gateway_id: GatewayId, faults: FaultLog) -> None:
        self._store = store
        self._clock = clock
        self._id = gateway_id
        self._faults = faults
        self._reads = asyncio.Semaphore(READS_MAX)

    async def fetch(self, subscription: Subscription, offset: int) -> OutputFetched | FetchFailed:
        """Read a request's output log from `offset` on; first make sure that the store knows our interest.

        Raises:
            UndecodableDataError: What the store has of the request is damaged.
        """
        id = subscription.metadata.id
        try:
            async with self._reads:
                if not subscription.indexed:
                    await self._index(subscription)
                log = await self._store.read_output(id, offset)
                lost = log is None and subscription.published and await self._store.indexed()
        except UnavailableError as error:
            _log.debug("cannot read the output of request %s: %s", id, error, extra={"request_id": id})
            return FetchFailed(self._clock.now_ns())
        now_ns = self._clock.now_ns()
        waits = log is not None and log.outcome is None and not log.end
        if log is None or (waits and now_ns - subscription.watched_ns >= WATCH_AGAIN_NS):
            subscription.indexed = False
        return OutputFetched(log, now_ns, lost=lost)

    async def _index(self, subscription: Subscription) -> None:
        # A store that was emptied must not learn of a request from us: one published before may have ended
        # since, and would wait without a message. The agent that runs it, or the controller that reads the
        # queue, indexes it. `enqueue` fails if the store is not the incarnation in which we published.
        if subscription.index_pending_in is not None:
            try:
                await self._store.enqueue(subscription.metadata, self._id, subscription.index_pending_in)
            except StoreEmptiedError:
                subscription.index_pending_in = None
        if subscription.index_pending_in is None:
            await self._store.watch(subscription.metadata, self._id)
        subscription.index_pending_in = None
        subscription.indexed = True
        subscription.watched_ns = self._clock.now_ns()

    async def end(self, subscription: Subscription, final: SendFinal) -> None:
        """Send the end of an answer to a client that came later: when its output came, the record says."""
        judged = UNDECIDED
        try:
            judged = await self._attainment(subscription.metadata, final)
        finally:
            subscription.sink.final(replace(final, attainment=judged))

    async def _attainment(self, metadata: RequestMetadata, final: SendFinal) -> Attainment:
        if metadata.slo.target_ms is None:
            return UNDECIDED
        try:
            async with asyncio.timeout(RECORD_TIMEOUT_S):
                record = await self._store.record(metadata.id)
        except (QlmError, TimeoutError) as error:
            _log.debug("request %s: whether it was late is unknown: %s", metadata.id, error)
            return UNDECIDED
        if record is None or not record.metadata.is_same_request(metadata):
            return UNDECIDED
        now_ns = self._clock.now_ns()
        # At a stop string the generation may not have ended yet.
        ended_ns = now_ns if record.ended_ns is None else record.ended_ns
        ended = replace(record, outcome=final.outcome, ended_ns=ended_ns, output_tokens=final.offset)
        return recorded_attainment(ended, now_ns)

    async def unwatch(self, id: RequestId) -> int | None:
        """Remove this gateway as a watcher; return the number of others, None if the store is unavailable."""
        try:
            return await self._store.unwatch(id, self._id)
        except Exception as error:
            doing = "request %s runs on though its client left"
            self._faults.note(_log, error, doing, id, extra={"request_id": id})
            return None

    async def unwatch_all(self, ids: Iterable[RequestId]) -> None:
        """Remove this gateway as a watcher of all these requests, if the store answers in time."""
        try:
            async with asyncio.timeout(UNWATCH_TIMEOUT_S):
                await asyncio.gather(*(self._store.unwatch(id, self._id) for id in ids))
        except Exception as error:
            self._faults.note(_log, error, "this gateway is still registered as a watcher")

    async def cancel(self, id: RequestId, outcome: Outcome, why: str = "") -> None:
        """End a request with an outcome; a store that is away is logged."""
        try:
            await self._store.cancel(id, outcome, why)
        except Exception as error:
            doing = "request %s runs on though it could end (%s)"
            self._faults.note(_log, error, doing, id, outcome, extra={"request_id": id})
