"""The open subscriptions of a gateway: feeds them output and time, and carries out their actions."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, assert_never

from qlm.domain.attainment import attainment
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.shell.tasks import end_tasks, run_together
from qlm.gateway.api.errors import STOPPING, unavailable
from qlm.gateway.core.admitted import Admitted
from qlm.gateway.core.answer_text import answer_text
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.session import Mode, Session
from qlm.gateway.core.session_events import (
    Action,
    CancelRequest,
    ClientGone,
    Event,
    FetchFailed,
    FetchOutput,
    OutputAnnounced,
    Resync,
    SendEvent,
    SendFinal,
    SendKeepAlive,
    StopGeneration,
    Tick,
)
from qlm.gateway.core.tasks.memory import TaskMemory
from qlm.gateway.observability.metrics import GatewayMetrics
from qlm.gateway.observability.tracing import RequestSpans
from qlm.gateway.sessions.output_store import OutputStore
from qlm.gateway.sessions.sink import Sink
from qlm.gateway.sessions.subscription import Subscription, timing_of
from qlm.gateway.sessions.timers import Timers
from qlm.gateway.tokenizers.served_models import ServedModels

_log = logging.getLogger(__name__)

TICK_S: Final = 0.05
"""Resolution of the timers."""

_GATEWAY_FAILED: Final = "the gateway failed; see its log"

GRACES_MAX: Final = 16
"""Grace periods whose intervals are remembered: those of the configuration, and some that clients name."""

RECONNECT_S: Final = 0.5
"""Pause before listening again after the store was lost."""


class Hub:
    """The open subscriptions of one gateway.

    Attributes:
        gateway_id: Name under which the store announces output to this gateway.
        stopping: The gateway is stopping: clients should go to another one.
    """

    def __init__(
        self,
        *,
        models: ServedModels,
        store: GatewayStore,
        clock: Clock,
        limits: GatewayLimits,
        gateway_id: GatewayId,
        metrics: GatewayMetrics,
        spans: RequestSpans,
        faults: FaultLog,
        task_memory: TaskMemory,
        admitted: Admitted,
    ) -> None:
        """Make a hub without subscriptions; `run` starts it."""
        self.gateway_id = gateway_id
        self._faults = faults
        self.stopping = False
        self._models = models
        self._store = store
        self._output = OutputStore(store, clock, gateway_id, faults)
        self._clock = clock
        self._timing_of = lru_cache(maxsize=GRACES_MAX)(partial(timing_of, limits))
        self._metrics = metrics
        self._spans = spans
        self._task_memory = task_memory
        self._admitted = admitted
        self._subscriptions: dict[RequestId, list[Subscription]] = {}
        self._timers = Timers()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._closed = False

    @property
    def state(self) -> str:
        """`ok`, or why no client should be sent here."""
        if self.stopping:
            return "stopping"
        return "ok" if self._running else "not running"

    # --- clients

    def subscribe(
        self,
        metadata: RequestMetadata,
        sink: Sink,
        mode: Mode,
        *,
        grace_s: float,
        counts_in_metrics: bool,
        shown: int = 0,
        replays: bool = False,
    ) -> Subscription:
        """Open a session on a request.

        Args:
            metadata: The request.
            sink: Destination of the answer.
            mode: How the answer is delivered.
            grace_s: Time for which the client may be disconnected before its request is cancelled.
            counts_in_metrics: This subscription reports the end of the request to the metrics.
            shown: Output tokens that the client has been shown before.
            replays: The sink gets these tokens again.

        Raises:
            ApiError: Its model is not served here, or this gateway is stopping.
        """
        text = answer_text(metadata, self._models.named(metadata.model).tokenizer)
        timing, now_ns = self._timing_of(grace_s), self._clock.now_ns()
        session = Session(metadata, text, mode, timing, now_ns, shown, replays=replays)
        if self._closed:
            raise unavailable("this gateway is stopping; try again", STOPPING)
        subscription = Subscription(session, sink, counts_in_metrics)
        self._subscriptions.setdefault(metadata.id, []).append(subscription)
        self._metrics.sessions.inc()
        self._timers.schedule(subscription)
        return subscription

    def attach(self, subscription: Subscription) -> None:
        """Read the output of a request that is queued already, and watch it."""
        subscription.published = True
        now_ns = self._clock.now_ns()
        self._handle(subscription, Resync(now_ns))
        self._handle(subscription, Tick(now_ns))

    def detach(self, subscription: Subscription, *, for_good: bool = False) -> None:
        """Note that the client has disconnected; for the grace period it may resume, unless `for_good`."""
        self._handle(subscription, ClientGone(self._clock.now_ns(), for_good))

    def drop(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        id = subscription.metadata.id
        subscriptions = self._subscriptions.get(id, [])
        if subscription in subscriptions:
            subscriptions.remove(subscription)
            self._metrics.sessions.dec()
        if not subscriptions:
            self._subscriptions.pop(id, None)
            self._spans.left(id, self._clock.now_ns(), "no client waits for it any more")

    def metadata_of(self, id: RequestId) -> RequestMetadata | None:
        """Return a request that has a subscription here."""
        return next((each.metadata for each in self._subscriptions.get(id, ())), None)

    def interrupt_all(self) -> list[RequestId]:
        """End all subscriptions and accept no more; return their requests, which continue elsewhere."""
        self._closed = True
        open_subscriptions = self._all()
        for subscription in open_subscriptions:
            subscription.session.over = True
            id = subscription.metadata.id
            message = (
                f"this gateway is stopping; request {id} continues: GET /v1/requests/{id} on another one"
            )
            subscription.sink.interrupt(unavailable(message, STOPPING))
            self.drop(subscription)
        return [each.metadata.id for each in open_subscriptions]

    def end_plain(self, why: str) -> None:
        """End with 503 the plain answers of queued requests, which continue; their store is away."""
        for subscription in self._all():
            if not subscription.published or not subscription.session.is_plain:
                continue
            subscription.session.over = True
            id = subscription.metadata.id
            message = (
                f"the shared state is not available: {why}; request {id} continues: GET /v1/requests/{id}"
            )
            subscription.sink.interrupt(unavailable(message, "store_unavailable"))
            self.drop(subscription)

    async def unwatch(self, ids: Iterable[RequestId]) -> None:
        """Stop the store's announcements of these requests to this gateway, if the store answers in time."""
        await self._output.unwatch_all(ids)

    def resync(self) -> None:
        """Read every open request: announcements, or the store's note of our interest, may have been lost."""
        now_ns = self._clock.now_ns()
        for subscription in self._all():
            subscription.indexed = False
            self._handle(subscription, Resync(now_ns))

    def _all(self) -> list[Subscription]:
        return [each for subscriptions in self._subscriptions.values() for each in subscriptions]

    # --- announcements and time

    async def run(self) -> None:
        """Listen for output and run timers until cancelled."""
        self._running = True
        try:
            await run_together(self._listen(), self._run_timers())
        finally:
            self._running = False
            await end_tasks(self._tasks)

    async def _listen(self) -> None:
        while True:
            try:
                async for slices in self._store.outputs(self.gateway_id):
                    if not slices:
                        self.resync()  # an empty batch means that announcements may have been missed
                    now_ns = self._clock.now_ns()
                    for slice in slices:
                        for subscription in tuple(self._subscriptions.get(slice.id, ())):
                            self._handle(subscription, OutputAnnounced(slice, now_ns))
            except Exception as error:
                self._faults.note(_log, error, "cannot receive announcements of output")
            await asyncio.sleep(RECONNECT_S)
            self.resync()

    async def _run_timers(self) -> None:
        while True:
            now_ns = self._clock.now_ns()
            for subscription in self._timers.due(now_ns):
                self._handle(subscription, Tick(now_ns))
            await asyncio.sleep(TICK_S)

    # --- events and actions

    def _handle(self, subscription: Subscription, event: Event) -> None:
        """Give an event to a session and carry out its actions."""
        try:
            for action in subscription.session.handle(event):
                self._perform(subscription, action)
            if subscription.session.times.first_ns is not None:
                self._admitted.left(subscription.metadata.id)
        except Exception as error:
            # One request that cannot be handled must not silence all others.
            id = subscription.metadata.id
            self._faults.note(_log, error, "request %s cannot be answered", id, extra={"request_id": id})
            self._fail(subscription, _GATEWAY_FAILED)
        if subscription.session.over:
            self.drop(subscription)
        else:
            self._timers.schedule(subscription)

    @staticmethod
    def _fail(subscription: Subscription, why: str) -> None:
        subscription.session.over = True
        subscription.sink.final(SendFinal(0, "", None, Outcome.FAILED, why))

    def _perform(self, subscription: Subscription, action: Action) -> None:
        match action:
            case SendEvent():
                subscription.sink.event(action)
            case SendKeepAlive():
                subscription.sink.keep_alive()
            case SendFinal():
                self._admitted.left(subscription.metadata.id)
                self._end(subscription, action)
            case FetchOutput(offset=offset):
                self._spawn(self._fetch(subscription, offset))
            case StopGeneration():
                self._spawn(self._output.cancel(subscription.metadata.id, Outcome.STOP))
            case CancelRequest(outcome=outcome, why=why):
                self._leave(subscription, outcome, why)
            case _:
                assert_never(action)

    def _end(self, subscription: Subscription, final: SendFinal) -> None:
        """Send the end of an answer, with whether it was in time."""
        if not subscription.counts_in_metrics:
            self._spawn(self._output.end(subscription, final))
            return
        metadata, now_ns, times = subscription.metadata, self._clock.now_ns(), subscription.session.times
        judged = attainment(metadata, times, outcome=final.outcome, ended_ns=now_ns, tokens=final.offset)
        final = replace(final, attainment=judged)
        self._task_memory.ended(metadata, times.first_ns if final.outcome.ok else None, now_ns)
        self._metrics.ended(metadata, final, times, now_ns, subscription.predicted_s)
        self._spans.ended(metadata, final, times.first_ns, now_ns)
        subscription.sink.final(final)

    async def _fetch(self, subscription: Subscription, offset: int) -> None:
        event: Event = FetchFailed(self._clock.now_ns())
        try:
            event = await self._output.fetch(subscription, offset)
        except Exception as error:
            id = subscription.metadata.id
            doing = "request %s cannot be answered"
            kind = self._faults.note(_log, error, doing, id, extra={"request_id": id})
            damaged = kind is FaultKind.REFUSED
            why = f"what the shared state has of it is damaged: {error}" if damaged else _GATEWAY_FAILED
            self._fail(subscription, why)
            self.drop(subscription)
        self._handle(subscription, event)

    def _leave(self, subscription: Subscription, outcome: Outcome, why: str) -> None:
        """End a request that its client has left, or whose output is lost, unless someone else watches it."""
        counts = outcome is Outcome.CANCELLED and subscription.counts_in_metrics
        id, now_ns = subscription.metadata.id, self._clock.now_ns()
        others = [each for each in self._subscriptions.get(id, ()) if each is not subscription]
        if not others:
            if counts:
                self._spans.left(id, now_ns, outcome=str(outcome))
            self._spawn(self._cancel_unless_watched(subscription, outcome, why, counts=counts))
        elif counts:
            others[-1].count_for(subscription, now_ns)

    async def _cancel_unless_watched(
        self, subscription: Subscription, outcome: Outcome, why: str, *, counts: bool
    ) -> None:
        id = subscription.metadata.id
        watchers = await self._output.unwatch(id)
        if (resumed := self._subscriptions.get(id)) is not None:  # during the call, at this gateway
            if counts:
                resumed[-1].count_for(subscription, self._clock.now_ns())
        elif watchers == 0:
            await self._output.cancel(id, outcome, why)
            self._admitted.left(id)
            if counts:
                self._metrics.cancelled(subscription.metadata)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
