"""Durable publishing of accepted requests: queue first, then index."""

import asyncio
import logging
from typing import Final

from qlm.broker.codec import RequestBody
from qlm.domain.errors import BrokerUnavailableError, QlmError, StoreUnavailableError
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import Request, RequestMetadata
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.api.reasons import NOT_CONFIRMED
from qlm.gateway.core.forecast import ExpectedTimes
from qlm.gateway.core.tasks.memory import TaskMemory, call_again
from qlm.gateway.observability.metrics import GatewayMetrics
from qlm.gateway.observability.tracing import RequestSpans
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.idempotency import KEY_HEADER, key_reused
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.subscription import Subscription

_log = logging.getLogger(__name__)

_WITHDRAW_TIMEOUT_S: Final = 2.0


class Publisher:
    """Brings requests into the global queue and the request index."""

    def __init__(
        self,
        *,
        broker: Broker,
        store: GatewayStore,
        clock: Clock,
        hub: Hub,
        load: LoadWatch,
        metrics: GatewayMetrics,
        spans: RequestSpans,
        faults: FaultLog,
        task_memory: TaskMemory,
        timeout_s: float,
    ) -> None:
        """Publish with at most `timeout_s` seconds for the broker's confirmation."""
        self._broker = broker
        self._store = store
        self._clock = clock
        self._hub = hub
        self._load = load
        self._metrics = metrics
        self._spans = spans
        self._faults = faults
        self._task_memory = task_memory
        self._timeout_s = timeout_s

    async def publish(
        self,
        request: Request,
        metadata: RequestMetadata,
        subscription: Subscription | None,
        kind: str,
        media: bytes = b"",
    ) -> None:
        """Store the media of a request and queue it durably, then index it.

        Args:
            request: The request.
            metadata: The same without its prompt.
            subscription: The subscription of its client, if it waits; dropped if the request is not accepted.
            kind: Kind of answer, for the metrics: `stream`, `whole` or `async`.
            media: Images, sound and video of the prompt; empty without any.

        Raises:
            ApiError: The store or the broker did not confirm, or at the same time another gateway accepted
                another body under the same Idempotency-Key; nothing was accepted.
        """
        queued = False
        self._load.reserve(metadata)
        try:
            await self._publish(request, metadata, subscription, kind, media)
            queued = True
        finally:
            self._load.settle(metadata.id, queued=queued)

    async def _publish(
        self,
        request: Request,
        metadata: RequestMetadata,
        subscription: Subscription | None,
        kind: str,
        media: bytes,
    ) -> None:
        incarnation = self._load.incarnation
        request = self._spans.begin(request)
        if media:
            await self._keep(metadata, media, subscription)
        await self._queue(request, metadata, subscription)
        forecast = self._load.forecast()
        expected = None if forecast is None else forecast.expected(metadata.cls, metadata.sampling.max_tokens)
        self._load.count_accepted(metadata.model)
        if subscription is not None:
            subscription.published, subscription.index_pending_in = True, incarnation
        try:
            await self._index(metadata, subscription, incarnation)
        except ApiError:
            raise
        except Exception as error:
            # The queue has the request, so it will be served. The agent that pulls it indexes it, and the
            # session looks it up again when it polls.
            self._load.expect_unknown()
            doing, extra = "request %s is queued but not indexed yet", {"request_id": metadata.id}
            self._faults.note(_log, error, doing, metadata.id, extra=extra)
        self._count(metadata, subscription, kind, expected)

    async def _keep(self, metadata: RequestMetadata, media: bytes, subscription: Subscription | None) -> None:
        """Store media; if that may have failed, the withdrawal of the request drops them."""
        try:
            kept = await self._store.put_media(metadata.id, media)
            if not kept and await self._store.record(metadata.id) is None:
                # Those of an attempt with the same key that was not queued.
                await self._store.drop_media(metadata.id)
                kept = await self._store.put_media(metadata.id, media)
        except BaseException as error:
            refused = self._not_accepted(metadata, subscription, _not_kept(error))
            if not isinstance(error, Exception):
                raise
            await self._withdraw(metadata)
            if not isinstance(error, QlmError):
                raise
            raise refused from error
        if not kept:
            raise self._not_accepted(metadata, subscription, key_reused(f"the {KEY_HEADER}"))

    async def _queue(
        self, request: Request, metadata: RequestMetadata, subscription: Subscription | None
    ) -> None:
        try:
            await self._confirmed(request)
        except BrokerUnavailableError as error:
            self._load.count_refused(self._clock.now_ns(), str(error))
            self._not_accepted(metadata, subscription, from_qlm(error))
            await self._withdraw(metadata)
            raise from_qlm(error) from error
        except BaseException as error:
            self._spans.left(metadata.id, self._clock.now_ns(), repr(error))
            self._drop(subscription)
            if metadata.sampling.media and isinstance(error, Exception):
                await self._withdraw(metadata)
            raise

    async def _confirmed(self, request: Request) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._broker.publish(request.cls.queue, RequestBody.of(request))
        except TimeoutError as error:
            raise BrokerUnavailableError(f"no confirmation within {self._timeout_s:g} s") from error

    async def _withdraw(self, metadata: RequestMetadata) -> None:
        # The broker may have stored the message although it did not confirm; a withdrawn request is dropped
        # when it is pulled. Of a request with an Idempotency-Key, another attempt may have been accepted
        # meanwhile: `withdraw` leaves that one alone, and so do we.
        try:
            async with asyncio.timeout(_WITHDRAW_TIMEOUT_S):
                if not await self._store.withdraw(metadata) and not metadata.fingerprint:
                    await self._store.cancel(metadata.id, why=NOT_CONFIRMED)
        except Exception as error:
            doing = "request %s was not confirmed; if the queue has it, it will run without a client"
            self._faults.note(_log, error, doing, metadata.id, extra={"request_id": metadata.id})

    async def _index(
        self, metadata: RequestMetadata, subscription: Subscription | None, incarnation: int | None
    ) -> None:
        watcher = None if subscription is None else self._hub.gateway_id
        record = (await self._store.enqueue(metadata, watcher, incarnation)).record
        if not record.metadata.is_same_request(metadata):
            # The agent that pulls our message gets IdTaken from the store, and drops it.
            raise self._not_accepted(metadata, subscription, key_reused(f"the {KEY_HEADER}"))
        if record.outcome is Outcome.CANCELLED and metadata.fingerprint:
            # Another attempt with the same key was not confirmed meanwhile, and withdrew this request.
            withdrawn = BrokerUnavailableError("another attempt of this request was withdrawn meanwhile")
            raise self._not_accepted(metadata, subscription, from_qlm(withdrawn))
        if subscription is not None:
            subscription.indexed, subscription.index_pending_in = True, None
            subscription.watched_ns = metadata.arrival_ns

    def _not_accepted(
        self, metadata: RequestMetadata, subscription: Subscription | None, error: ApiError
    ) -> ApiError:
        self._spans.not_queued(metadata.id, self._clock.now_ns(), error)
        self._drop(subscription)
        return error

    def _count(
        self,
        metadata: RequestMetadata,
        subscription: Subscription | None,
        kind: str,
        expected: ExpectedTimes | None,
    ) -> None:
        now_ns = self._clock.now_ns()
        self._metrics.accepted(metadata, kind, (now_ns - metadata.arrival_ns) / 1e9)
        if not metadata.extensions.choice and (call := call_again(metadata)) is not None:
            self._task_memory.note_arrival(call, metadata.model, metadata.arrival_ns)
        if expected is not None:
            self._metrics.predicted(metadata, expected)
            if subscription is not None:
                subscription.predicted_s = expected.completion.mean
        if subscription is None:
            self._spans.left(metadata.id, now_ns)  # this gateway does not see its end

    def _drop(self, subscription: Subscription | None) -> None:
        if subscription is not None:
            self._hub.drop(subscription)


def _not_kept(error: BaseException) -> ApiError:
    return from_qlm(error if isinstance(error, QlmError) else StoreUnavailableError(repr(error)))
