"""Brings output to the sessions that wait for it, and carries out what they ask of the store."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from qlm.domain.errors import StoreEmptiedError, StoreUnavailableError
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestCard
from qlm.gateway.errors import STOPPING, unavailable
from qlm.gateway.metrics import GatewayMetrics
from qlm.gateway.session import Session
from qlm.gateway.session_events import (
    Action,
    AskCancel,
    AskOutput,
    AskStop,
    Event,
    Heard,
    Read,
    ReadFailed,
    Resync,
    SendEvent,
    SendFinal,
    SendKeepAlive,
    Tick,
)
from qlm.gateway.sinks import Sink
from qlm.gateway.tracing import RequestSpans

_log = logging.getLogger(__name__)

READS_MAX: Final = 64
"""Look-ups under way at once; after a lost connection every open request is looked up."""

TICK_S: Final = 0.05
"""How exactly pauses are kept."""

RECONNECT_S: Final = 0.5
"""Pause before listening again after the store was lost."""

UNWATCH_S: Final = 2.0
"""How long a gateway that stops may take to say that nothing is to be announced to it any more."""


@dataclass(slots=True, eq=False)
class Seat:
    """A session with the place its answer goes to.

    Attributes:
        session: The protocol.
        sink: The place.
        counted: Its end counts in the metrics; false for a second look at a request.
        indexed: The store knows the request and that we watch it, as far as we know.
        published: The queue had its message.
        index_in: The incarnation of the store in which it was published, and is to be indexed by us; None:
            it was, or others index it who have its message.
        due_ns: When its next entry in the timer queue is due.
        predicted_s: From arrival to the end of the answer, as forecast on arrival; None if it was not.
    """

    session: Session
    sink: Sink
    counted: bool
    indexed: bool = False
    published: bool = False
    index_in: int | None = None
    due_ns: int = field(default=2**63)
    predicted_s: float | None = None

    @property
    def card(self) -> RequestCard:
        """The request."""
        return self.session.card


class Hub:
    """The sessions of one gateway.

    Attributes:
        stopping: The gateway is to end: clients should go to another one.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        gateway_id: GatewayId,
        metrics: GatewayMetrics,
        spans: RequestSpans,
    ) -> None:
        """Make a hub without sessions; `run` brings it to life."""
        self._store = store
        self._clock = clock
        self._id = gateway_id
        self._metrics = metrics
        self._spans = spans
        self._seats: dict[RequestId, list[Seat]] = {}
        self._timers: list[tuple[int, int, Seat]] = []
        self._order = itertools.count()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._broken_off = False
        self.stopping = False

    @property
    def running(self) -> bool:
        """Whether output is brought to sessions."""
        return self._running

    @property
    def state(self) -> str:
        """`ok`, or why no client should be sent here."""
        if self.stopping:
            return "stopping"
        return "ok" if self._running else "not running"

    @property
    def gateway_id(self) -> GatewayId:
        """The name under which output is announced to us."""
        return self._id

    def add(self, session: Session, sink: Sink, *, counted: bool) -> Seat:
        """Begin to bring output to a session.

        Raises:
            ApiError: This gateway is about to end.
        """
        if self._broken_off:
            raise unavailable("this gateway is stopping; try again", STOPPING)
        seat = Seat(session, sink, counted)
        self._seats.setdefault(session.card.id, []).append(seat)
        self._metrics.sessions.inc()
        self._schedule(seat)
        return seat

    def card_of(self, id: RequestId) -> RequestCard | None:
        """A request that has a session here."""
        return next((seat.card for seat in self._seats.get(id, ())), None)

    def drop(self, seat: Seat) -> None:
        """Forget a session."""
        seats = self._seats.get(seat.card.id, [])
        if seat in seats:
            seats.remove(seat)
            self._metrics.sessions.dec()
        if not seats:
            self._seats.pop(seat.card.id, None)
            self._spans.left(seat.card.id, self._clock.now_ns(), "nobody waits for it any more")

    def handle(self, seat: Seat, event: Event) -> None:
        """Give an event to a session and carry out what it asks."""
        try:
            for action in seat.session.handle(event):
                self._perform(seat, action)
        except Exception:
            # One request that cannot be handled must not silence all others.
            _log.exception("request %s cannot be answered", seat.card.id, extra=_about(seat.card.id))
            seat.session.over = True
            seat.sink.final(SendFinal(0, "", None, Outcome.FAILED, "the gateway failed; see its log"))
        if seat.session.over:
            self.drop(seat)
        else:
            self._schedule(seat)

    def break_off(self) -> list[RequestId]:
        """Let go of all sessions, and take no more; return the requests, which go on without this gateway."""
        self._broken_off = True
        seats = [seat for seats in self._seats.values() for seat in seats]
        for seat in seats:
            seat.session.over = True
            id = seat.card.id
            told = f"this gateway is stopping; request {id} goes on: another one has it as /v1/requests/{id}"
            seat.sink.break_off(unavailable(told, STOPPING))
            self.drop(seat)
        return [seat.card.id for seat in seats]

    async def unwatch(self, ids: Iterable[RequestId]) -> None:
        """Let nothing of these requests be announced to us any more, if the store can be reached."""
        try:
            async with asyncio.timeout(UNWATCH_S):
                await asyncio.gather(*(self._store.unwatch(id, self._id) for id in ids))
        except (StoreUnavailableError, TimeoutError) as error:
            _log.warning("output is still announced to this gateway: %s", error or "no answer")

    def look_up(self, seat: Seat) -> None:
        """Read the output of a request that the store knows already, and watch it."""
        seat.published = True
        now_ns = self._clock.now_ns()
        self.handle(seat, Resync(now_ns))
        self.handle(seat, Tick(now_ns))

    def resync(self) -> None:
        """Look up every open request: announcements may have been missed, or our interest in them lost."""
        now_ns = self._clock.now_ns()
        for seat in [seat for seats in self._seats.values() for seat in seats]:
            seat.indexed = False
            self.handle(seat, Resync(now_ns))

    async def run(self) -> None:
        """Listen and keep time until cancelled."""
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                group.create_task(self._keep_time())
        finally:
            self._running = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- time and announcements

    async def _listen(self) -> None:
        while True:
            try:
                async for slices in self._store.outputs(self._id):
                    if not slices:
                        self.resync()  # so the store says that announcements may have been missed
                    now_ns = self._clock.now_ns()
                    for slice in slices:
                        for seat in tuple(self._seats.get(slice.id, ())):
                            self.handle(seat, Heard(slice, now_ns))
            except StoreUnavailableError as error:
                _log.warning("output is not announced at the moment: %s", error)
            await asyncio.sleep(RECONNECT_S)
            self.resync()

    async def _keep_time(self) -> None:
        while True:
            now_ns = self._clock.now_ns()
            while self._timers and self._timers[0][0] <= now_ns:
                due_ns, _, seat = heapq.heappop(self._timers)
                if due_ns != seat.due_ns or seat.session.over:
                    continue  # an entry that a later one replaced
                seat.due_ns = 2**63
                if seat.session.wake_ns <= now_ns:
                    self.handle(seat, Tick(now_ns))
                else:
                    self._schedule(seat)
            await asyncio.sleep(TICK_S)

    def _schedule(self, seat: Seat) -> None:
        """Put a session into the timer queue, unless an earlier entry will look at it anyway."""
        wake_ns = seat.session.wake_ns
        if wake_ns < seat.due_ns:
            seat.due_ns = wake_ns
            heapq.heappush(self._timers, (wake_ns, next(self._order), seat))

    # --- actions

    def _perform(self, seat: Seat, action: Action) -> None:
        match action:
            case SendEvent():
                seat.sink.event(action)
            case SendKeepAlive():
                seat.sink.keep_alive()
            case SendFinal():
                if seat.counted:
                    self._ended(seat, action)
                seat.sink.final(action)
            case AskOutput(offset=offset):
                self._spawn(self._read(seat, offset))
            case AskStop():
                self._spawn(self._cancel(seat.card.id, Outcome.STOP))
            case AskCancel(outcome=outcome):
                if outcome is Outcome.CANCELLED and seat.counted:
                    self._metrics.cancelled(seat.card)
                    self._spans.left(seat.card.id, self._clock.now_ns(), outcome=str(outcome))
                self._spawn(self._let_go(seat, outcome))
            case _:
                assert_never(action)

    def _ended(self, seat: Seat, final: SendFinal) -> None:
        now_ns, first_ns = self._clock.now_ns(), seat.session.first_output_ns
        self._metrics.ended(seat.card, final, first_ns, now_ns, seat.predicted_s)
        self._spans.ended(seat.card, final, first_ns, now_ns)

    async def _read(self, seat: Seat, offset: int) -> None:
        event: Event | None = None
        try:
            async with self._reads:
                if not seat.indexed:
                    await self._index(seat)
                read = await self._store.read_output(seat.card.id, offset)
                lost = read is None and seat.published and await self._store.indexed()
            if read is None:
                seat.indexed = False
            event = Read(read, self._clock.now_ns(), lost=lost)
        except StoreUnavailableError as error:
            id = seat.card.id
            _log.warning("output of request %s cannot be looked up: %s", id, error, extra=_about(id))
        finally:
            self.handle(seat, event or ReadFailed(self._clock.now_ns()))

    async def _index(self, seat: Seat) -> None:
        """Make sure that the store knows of our interest in a request, and of the request if we can.

        An emptied store learns of it from who has its message, the agent that runs it or the controller that
        reads the queue: what was published before may have ended before, and would wait without a message.
        """
        if seat.index_in is not None:
            try:
                await self._store.enqueue(seat.card, self._id, seat.index_in)
            except StoreEmptiedError:
                seat.index_in = None
        if seat.index_in is None:
            await self._store.watch(seat.card.id, self._id)
        seat.index_in = None
        seat.indexed = True

    async def _let_go(self, seat: Seat, outcome: Outcome) -> None:
        id = seat.card.id
        if any(each is not seat for each in self._seats.get(id, ())):
            return
        try:
            others = await self._store.unwatch(id, self._id)
        except StoreUnavailableError as error:
            _log.warning("request %s runs on though its client left: %s", id, error, extra=_about(id))
            return
        # While we asked, the client may have come back to this gateway.
        if others == 0 and id not in self._seats:
            await self._cancel(id, outcome)

    async def _cancel(self, id: RequestId, outcome: Outcome) -> None:
        try:
            await self._store.cancel(id, outcome)
        except StoreUnavailableError as error:
            _log.warning(
                "request %s runs on though it could end (%s): %s", id, outcome, error, extra=_about(id)
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _about(id: RequestId) -> dict[str, str]:
    return {"request_id": id}
