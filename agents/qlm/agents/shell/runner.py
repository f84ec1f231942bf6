"""Asyncio shell of an agent: carries out its actions, and returns their results to it as events.

Pulls and leases are done at once where broker and store can (`acquiring`). Side effects, whose order matters,
go through one worker (`side_effects`), and appends, one per request, through `appends`. Other actions that
wait for something are a task each.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import (
    EngineChanged,
    EngineProbed,
    Event,
    QueueRead,
    Tick,
    WeightsPrefetched,
)
from qlm.agents.core.side_effects import SideEffect
from qlm.agents.engines.http.statuses import StatusError
from qlm.agents.engines.model_host import EngineHost
from qlm.agents.engines.proof import prove_token
from qlm.agents.shell.acquiring import Acquiring
from qlm.agents.shell.appends import Appends
from qlm.agents.shell.generations import Generations, OnSubmitted
from qlm.agents.shell.instance_lease import InstanceLease
from qlm.agents.shell.side_effects import RETRY_S, SideEffects
from qlm.agents.shell.tick_timer import TickTimer
from qlm.broker.topology import hold_queue
from qlm.domain.actions import (
    Abort,
    AcquireLease,
    Action,
    Append,
    Drained,
    PrefetchModel,
    ProbeEngine,
    Pull,
    ReleasePrefetch,
    RestartEngine,
    RestoreRequest,
    SetTimer,
    Submit,
    SwapModel,
)
from qlm.domain.fleet import EngineState
from qlm.domain.lease import AgentProcess
from qlm.domain.notices import DrainAsked, QueueChanged
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.engine import Engine
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks, run_together

log = logging.getLogger("qlm.agents")

POLL_S: Final = 0.5
"""Interval of polls of virtual queue and hold queue: the longest delay after a lost notification."""

HOLD_PULL_MAX: Final = 64
"""Messages per poll from the hold queue."""

HEARTBEAT_S: Final = 1.0

RETURN_MAX_S: Final = 10.0
"""Time to return the requests of an instance that another agent has taken over."""


class AgentRunner:
    """Runs one agent on an asyncio loop, until cancelled or drained.

    Args:
        on_submitted: Receives each request when its generation starts.
        tracer: Records the spans of generations; None for no tracing.
        faults: Failures of the process.
        process: Process of the agent; None if unknown.
        has_ended: Returns True if a process that `process` sees is certainly gone.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        broker: Broker,
        store: AgentStore,
        host: EngineHost,
        clock: Clock,
        on_submitted: OnSubmitted | None = None,
        tracer: Tracer | None = None,
        faults: FaultLog | None = None,
        process: AgentProcess | None = None,
        has_ended: Callable[[AgentProcess], bool] = lambda _: False,
    ) -> None:
        self._agent = agent
        self._faults = faults = faults or FaultLog()
        self._broker = broker
        self._store = store
        self._host = host
        self._clock = clock
        self._instance = agent.state.holder.instance
        self._hold_queue = hold_queue(self._instance)
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: deque[tuple[Event, ...]] = deque()
        self._receiving = False
        self._generations = Generations(
            *(self._instance, host, clock, self.post, self._spawn),
            *(on_submitted, tracer, faults, store),
        )
        self._appends = Appends(self._instance, store, faults, self.post, self._spawn)
        self._side_effects = SideEffects(self._instance, broker, store, clock, faults)
        self._acquiring = Acquiring(
            *(self._instance, agent.state.holder, broker, store, faults),
            *(self.post, self._spawn, self._side_effects.put),
        )
        self._lease_of_instance = InstanceLease(agent.state.holder, store, faults, process, has_ended)
        self._timer = TickTimer(clock, lambda: self.post(Tick()))
        self._finished = asyncio.Event()
        self._defect: Exception | None = None

    async def run(self, grace_s: float = 0.0, *, patient: bool = False) -> None:
        """Serve until drained, once the lease of the instance is acquired.

        Args:
            grace_s: Longest time to drain when cancelled.
            patient: Wait for the lease for as long as another agent has it.

        Raises:
            InstanceHeldError: Another agent has the lease, or has taken it over; then all work is returned.
        """
        lease = self._lease_of_instance
        try:
            await run_together(lease.acquire(self._agent.status, patient=patient))
            await self._serve(grace_s)
        finally:
            await self.close()
        lease.check()

    async def _serve(self, grace_s: float) -> None:
        self._host.subscribe(self._engine_changed)
        for background in (self._subscribe, self._poll, self._send_heartbeats, self._side_effects.run):
            self._spawn(background())
        self.post(Tick())
        try:
            await self._finished.wait()
        except asyncio.CancelledError:
            await self._drain(grace_s)
            raise

    async def _drain(self, limit_s: float) -> None:
        self._start_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._finished.wait()

    async def close(self) -> None:
        """Stop at once; the broker returns unacknowledged messages when its connection closes."""
        self._generations.closing = True
        self._timer.stop()
        await end_tasks(self._tasks)
        try:
            await self._store.leave(self._agent.state.holder)
        except Exception as error:
            self._faults.note(log, error, "%s: could not deregister", self._instance)

    def post(self, *events: Event) -> None:
        """Pass simultaneous events to the agent, and start its actions.

        The agent decides once for these and for the events that its actions cause at once.

        Raises:
            Exception: A defect of the agent. It ends, wherever the caller may catch this: what it had decided
                is not carried out.
        """
        self._events.append(events)
        if self._receiving:
            return  # an action of the event before caused it, and others of its actions come first
        self._receiving = True
        try:
            while self._events:
                now_ns = self._clock.now_ns()
                while self._events:
                    self._start_all(self._agent.take(self._events.popleft(), now_ns))
                self._start_all(self._agent.decide(now_ns))
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._receiving = False

    def _start_all(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._start(action)

    def _start(self, action: Action) -> None:
        match action:
            case SetTimer(at_ns=at_ns):
                self._timer.set(at_ns)
            case Drained():
                self._spawn(self._finish())
            case Append():
                self._appends.start(action)
            case Pull():
                self._acquiring.pull(action, valid=self._lease_of_instance.valid)
            case AcquireLease():
                self._acquiring.lease(action)
            case RestoreRequest():
                self._acquiring.restore(action)
            case Submit(id=id, call=call):
                self._generations.start(call, self._agent.state.requests.all.get(id))
            case _ if isinstance(action, SideEffect):
                self._side_effects.put(action)
            case _:
                self._spawn(self._execute(action))

    async def _finish(self) -> None:
        await self._side_effects.finished()
        self._finished.set()

    async def _execute(self, action: Action) -> None:
        match action:
            case Abort(call_ids=call_ids, cut=cut):
                await self._generations.abort(call_ids, cut=cut)
            case _:
                await self._operate(action)

    async def _operate(self, action: Action) -> None:
        match action:
            case ProbeEngine(token_s=token_s):
                self.post(await self._probe(self._host.engine(), token_s))
            case SwapModel(model=model, later=later):
                self._spawn(self._send_heartbeat())  # at once: others would leave the same model meanwhile
                self._engine_changed(await self._host.swap(model, later))
            case RestartEngine(model=model, why=why):
                await self._host.fail(model, why)
            case PrefetchModel(model=model):
                self.post(await self._host.prefetch(model))
            case ReleasePrefetch(model=model):
                self.post(await self._host.drop_prefetched(model))
            case _:
                raise AssertionError(f"unknown action {action!r}")

    async def _probe(self, engine: Engine | None, token_s: float) -> EngineProbed:
        healthy, declined = False, ""
        try:
            if engine is not None and token_s:
                await prove_token(engine, token_s)
                healthy = True
            elif engine is not None:
                healthy = await engine.healthy()
        except Exception as error:
            self._faults.note(log, error, "%s: its engine cannot be probed", self._instance)
            declined = str(error) if isinstance(error, StatusError) else ""
        return EngineProbed(healthy=healthy, by_token=token_s > 0, declined=declined)

    async def _subscribe(self) -> None:
        while True:
            try:
                async for notice in self._store.notices(self._instance):
                    if isinstance(notice, QueueChanged):
                        await self._read_queue()
                    elif isinstance(notice, DrainAsked):
                        self._start_draining()
                    else:
                        self.post(notice)
            except Exception as error:
                self._faults.note(log, error, "%s: no notifications", self._instance)
                await asyncio.sleep(RETRY_S)

    def _start_draining(self) -> None:
        self.post(DrainAsked())
        self._spawn(self._send_heartbeat())  # so that the controller plans nothing more for this instance

    async def _read_queue(self) -> None:
        self.post(QueueRead(queue=await self._store.virtual_queue(self._instance)))

    async def _poll(self) -> None:
        while True:
            try:
                await self._read_queue()
                if self._lease_of_instance.valid:
                    messages = await self._broker.get(self._hold_queue, HOLD_PULL_MAX)
                    self._acquiring.received(None, 0, messages)
            except Exception as error:
                self._faults.note(log, error, "%s: poll failed", self._instance)
            self.post(Tick())
            await asyncio.sleep(POLL_S)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._send_heartbeat()

    def _engine_changed(self, event: EngineChanged | WeightsPrefetched) -> None:
        if isinstance(event, WeightsPrefetched):
            self.post(event)
            return
        if event.state is EngineState.FAILED:
            log.warning("%s: engine of %s failed: %s", self._instance, event.model, event.error)
        elif event.state is EngineState.AWAKE:
            log.info("%s: engine of %s is up", self._instance, event.model)
        self.post(event)
        self._spawn(self._send_heartbeat())  # at once: plans depend on it

    async def _send_heartbeat(self) -> None:
        try:
            if await self._lease_of_instance.renew(self._agent.status()):
                self._spawn(self._return_all())
        except Exception as error:
            self._faults.note(log, error, "%s: heartbeat failed", self._instance)

    async def _return_all(self) -> None:
        """Return all work, since another agent serves the instance now, and end."""
        await self._drain(RETURN_MAX_S)
        self._finished.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of a defect, rather than serve on in an unknown state."""
        if isinstance(error, Exception) and error is not self._defect:
            self._defect = error
            self._faults.note(log, error, "%s: agent failed", self._instance)
        self._finished.set()
