"""The asyncio interpreter of the agent protocol: carries out its actions and decides nothing.

Each action becomes a task whose end is an event for the protocol. Bookkeeping that must keep its order
(notes, acks, returns) goes through one worker. Time, store, broker and engines are given.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from qlm.agents.bookkeeper import RETRY_S, Bookkeeper
from qlm.agents.events import (
    Appended,
    EngineChanged,
    EngineProbed,
    Event,
    HeldAhead,
    LeaseAnswered,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.generations import Generations
from qlm.agents.hosting import EngineHost
from qlm.agents.protocol import AgentProtocol
from qlm.broker import codec
from qlm.domain.actions import (
    Abort,
    Ack,
    Action,
    Append,
    CoolModel,
    DeadLetter,
    Demote,
    Drained,
    HandOver,
    NoteParked,
    NoteResumed,
    ProbeEngine,
    Pull,
    PulledMessage,
    Renew,
    Reregister,
    Return,
    SetTimer,
    Submit,
    SwapModel,
    TakeLease,
    WarmModel,
)
from qlm.domain.errors import (
    BrokerUnavailableError,
    StoreCorruptError,
    StoreUnavailableError,
)
from qlm.domain.fleet import EngineState
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import DrainAsked, QueueChanged
from qlm.domain.output import AppendResult
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.ports.tracing import Tracer

if TYPE_CHECKING:  # a simulation needs no metrics, nor their package
    from qlm.agents.metrics import AgentMetrics

log = logging.getLogger("qlm.agents")

POLL_S: Final = 0.5
"""Longest time until an agent notices by itself what a lost notice should have told it."""

HEARTBEAT_S: Final = 1.0
HEARTBEAT_TTL_S: Final = 3.5
"""Silent for this long, an instance counts as dead and its work goes elsewhere."""


class AgentRunner:
    """One agent on an asyncio loop. `run` works until cancelled or drained; `close` lets go at once."""

    def __init__(
        self,
        protocol: AgentProtocol,
        *,
        broker: Broker,
        store: Store,
        host: EngineHost,
        clock: Clock,
        metrics: "AgentMetrics | None" = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._protocol = protocol
        self._broker = broker
        self._store = store
        self._host = host
        self._clock = clock
        self._instance = protocol.holder.instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._generations = Generations(self._instance, host, clock, self.post, self._spawn, metrics, tracer)
        self._books = Bookkeeper(self._instance, broker, store, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0
        self._finished = asyncio.Event()

    async def run(self, grace_s: float = 0.0) -> None:
        """Serve until drained; cancelled, drain first, if that takes no longer than `grace_s`."""
        self._host.subscribe(self._engine_changed)
        await self._heartbeat_now()
        background = (self._listen, self._poll, self._beat, self._books.run)
        for work in background:
            self._spawn(work())
        self.post(Tick())
        try:
            await self._finished.wait()
        except asyncio.CancelledError:
            await self._drain(grace_s)
            raise
        finally:
            await self.close()

    async def _drain(self, limit_s: float) -> None:
        self._drain_asked()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._finished.wait()

    async def close(self) -> None:
        """Stop everything; unacknowledged messages return when the broker connection closes."""
        self._generations.closing = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._store.leave(self._protocol.holder)
        except StoreUnavailableError as error:
            log.warning("%s: could not say goodbye: %s", self._instance, error)

    def post(self, event: Event) -> None:
        """Give the protocol an event and start carrying out what it answers."""
        for action in self._protocol.receive(event, self._clock.now_ns()):
            self._start(action)

    def _start(self, action: Action) -> None:
        match action:
            case SetTimer(at_ns=at_ns):
                self._set_timer(at_ns)
            case Drained():
                self._spawn(self._finish())
            case (
                Ack()
                | NoteParked()
                | NoteResumed()
                | Return()
                | Demote()
                | HandOver()
                | Renew()
                | DeadLetter()
            ):
                self._books.put(action)
            case Submit(id=id, call=call):
                self._generations.start(call, self._protocol.held.get(id))
            case _:
                self._spawn(self._carry_out(action))

    async def _finish(self) -> None:
        """End the run once everything is written down."""
        await self._books.written()
        self._finished.set()

    async def _carry_out(self, action: Action) -> None:
        match action:
            case Pull():
                await self._pull(action)
            case TakeLease(card=card, group=group):
                await self._lease(card.id, self._store.lease(card, self._protocol.holder, group))
            case Reregister(card=card, output=output):
                await self._lease(card.id, self._store.reregister(card, self._protocol.holder, output))
            case Abort(call_ids=call_ids):
                await self._generations.abort(call_ids)
            case Append():
                await self._append(action)
            case ProbeEngine():
                engine = self._host.engine()
                self.post(EngineProbed(healthy=engine is not None and await engine.healthy()))
            case SwapModel(model=model, later=later):
                self._engine_changed(await self._host.swap(model, later))
            case WarmModel(model=model):
                self.post(await self._host.warm(model))
            case CoolModel(model=model):
                self.post(await self._host.cool(model))
            case _:
                raise AssertionError(f"no interpreter for {action!r}")

    async def _pull(self, action: Pull) -> None:
        try:
            deliveries: Sequence[Delivery] = await self._broker.get(action.cls.queue, action.limit)
        except BrokerUnavailableError as error:
            log.warning("%s: pull failed: %s", self._instance, error)
            deliveries = ()
        self._received(action.group, action.limit, deliveries)

    def _received(self, group: GroupId | None, asked: int, deliveries: Sequence[Delivery]) -> None:
        if group is None and not deliveries:
            return
        messages = []
        for delivery in deliveries:
            try:
                messages.append(PulledMessage(delivery=delivery, request=codec.decode_request(delivery.body)))
            except StoreCorruptError as error:
                self._books.put(DeadLetter(delivery=delivery, reason=str(error)))
        self.post(Pulled(group=group, asked=asked, messages=tuple(messages)))

    async def _lease(self, id: RequestId, asking: Coroutine[Any, Any, LeaseAnswer]) -> None:
        answer: LeaseAnswer | None
        try:
            answer = await asking
        except StoreUnavailableError as error:
            log.warning("%s: no lease for %s: %s", self._instance, id, error, extra={"request_id": id})
            answer = None
        self.post(LeaseAnswered(id=id, answer=answer))

    async def _append(self, action: Append) -> None:
        try:
            results: tuple[AppendResult, ...] | None = tuple(await self._store.append(action.entries))
        except StoreUnavailableError as error:
            log.warning("%s: output log not written: %s", self._instance, error)
            results = None
        self.post(Appended(entries=action.entries, results=results))

    # background

    async def _listen(self) -> None:
        while True:
            try:
                async for notice in self._store.notices(self._instance):
                    if isinstance(notice, QueueChanged):
                        await self._read_queue()
                    elif isinstance(notice, DrainAsked):
                        self._drain_asked()
                    else:
                        self.post(notice)
            except StoreUnavailableError as error:
                log.warning("%s: notices wait: %s", self._instance, error)
                await asyncio.sleep(RETRY_S)

    def _drain_asked(self) -> None:
        self.post(DrainAsked())
        self._spawn(self._heartbeat_now())  # nothing is to be planned for us any more

    async def _read_queue(self) -> None:
        self.post(QueueRead(queue=await self._store.virtual_queue(self._instance)))

    async def _poll(self) -> None:
        while True:
            try:
                await self._read_queue()
                self._received(None, 0, await self._books.held_back())
            except (StoreUnavailableError, BrokerUnavailableError) as error:
                log.warning("%s: poll failed: %s", self._instance, error)
            self.post(Tick())
            await asyncio.sleep(POLL_S)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._heartbeat_now()

    async def _heartbeat(self) -> None:
        await self._store.heartbeat(self._protocol.status(), HEARTBEAT_TTL_S)

    def _engine_changed(self, event: EngineChanged | HeldAhead) -> None:
        """Take a change of an engine, and tell the world at once: plans depend on it."""
        if isinstance(event, HeldAhead):
            self.post(event)
            return
        if event.state is EngineState.FAILED:
            log.warning("%s: engine of %s failed: %s", self._instance, event.model, event.error)
        self.post(event)
        self._spawn(self._heartbeat_now())

    async def _heartbeat_now(self) -> None:
        try:
            await self._heartbeat()
        except StoreUnavailableError as error:
            log.warning("%s: heartbeat failed: %s", self._instance, error)

    def _set_timer(self, at_ns: int) -> None:
        now_ns = self._clock.now_ns()
        if self._timer is not None:
            if now_ns < self._timer_at_ns <= at_ns:
                return
            self._timer.cancel()
        self._timer_at_ns = at_ns
        delay_s = max(0.0, (at_ns - now_ns) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # A defect, not a condition: stop loudly instead of serving on in an unknown state.
            log.error("%s: agent failed", self._instance, exc_info=task.exception())
            self._finished.set()
