"""Shell of an agent in virtual time: executes its actions, and returns their results to it as events."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.core.agent import Agent
from qlm.agents.core.events import (
    Appended,
    EngineChanged,
    EngineProbed,
    Event,
    GenerationEnded,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
    WeightsPrefetched,
)
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.gpu_time import GpuTime
from qlm.agents.shell.instance_lease import HEARTBEAT_TTL_S
from qlm.agents.shell.runner import HEARTBEAT_S, HOLD_PULL_MAX, POLL_S
from qlm.broker.topology import hold_queue
from qlm.domain.actions import (
    Abort,
    AcquireLease,
    Append,
    Drained,
    PrefetchModel,
    ProbeEngine,
    Pull,
    PulledMessage,
    ReleasePrefetch,
    RestartEngine,
    RestoreRequest,
    SetTimer,
    Submit,
    SwapModel,
)
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.notices import InstanceNotice, QueueChanged
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request
from qlm.simulator.cluster.engine_host import HostedModel, SimulatedEngineHost, operation_costs
from qlm.simulator.cluster.event_queue import Rank
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.cluster.side_effects import SideEffects
from qlm.simulator.cluster.waiting_work import note_stopped
from qlm.simulator.engine.model import Chunk, Emission
from qlm.simulator.scenario import SimulatedInstance
from qlm.store.core import instances, leases, output_log, plans


class SimulatedAgent:
    """One session of an agent with its engines; after a crash, a new one replaces it.

    Args:
        entity: Number of the instance.
        session: Number of earlier sessions of the instance.
        host_memory_bytes: Memory for sleeping models and prefetched weights files.
        slowness: Returns the current factor on its engines' durations.
        on_submitted: Receives each generation that starts.
        on_evicted: Receives each request that is evicted.
        on_leased: Receives each granted lease, with the group for which the request was pulled.
        gpu_time: Account of the instance's time, over all of its sessions.
    """

    def __init__(
        self,
        services: SharedServices,
        instance: SimulatedInstance,
        entity: int,
        *,
        session: int,
        settings: AgentSettings,
        models: Mapping[ModelId, HostedModel],
        host_memory_bytes: int,
        slowness: Callable[[], float],
        on_submitted: Callable[[RequestId, int], None],
        on_evicted: Callable[[RequestId], None],
        on_leased: Callable[[RequestId, GroupId | None], None],
        gpu_time: GpuTime,
    ) -> None:
        self._holder = Holder(instance.id, SessionId(f"life-{session}"))
        self._former = SessionId(f"life-{session - 1}")
        costs = operation_costs(models, host_memory_bytes)
        self.core = Agent(
            self._holder, instance.kind, instance.models, settings, costs,
            gpu_time=gpu_time, waiting=services.waiting.models,
            new_policy=lambda: batch_policy(settings.batching),
        )  # fmt: skip
        self.host = SimulatedEngineHost(
            services.event_queue,
            entity,
            models,
            host_memory_bytes=host_memory_bytes,
            on_output=self._deliver,
            on_change=self._engine_changed,
            slowness=slowness,
            tiers=instance.swap_tiers,
        )
        self._services = services
        self._event_queue = services.event_queue
        self._entity = entity
        self._hold = hold_queue(instance.id)
        self._side_effects = SideEffects(services, instance.id, entity, on_evicted)
        self._on_submitted = on_submitted
        self._on_leased = on_leased
        self._timer_at_ns: int | None = None
        self._reading = False
        self._dead = False
        self._handlers = self._actions()

    def start(self, awake: ModelId | None) -> None:
        """Start, with the model `awake` loaded if one is given."""
        self._services.on_notice[self._holder.instance] = self._on_notice
        if awake is not None:
            self.host.start_awake(awake)
        self._send_heartbeats(None)
        self._poll(None)

    def kill(self) -> None:
        """Crash with all engines; the broker requeues unacknowledged messages."""
        self._dead = True
        for id in self.core.state.requests.all:
            self._services.waiting.stopped(id)
        self.host.close()
        self._side_effects.dead = True
        self._services.broker.disconnect(self._holder.instance)
        self._services.on_notice.pop(self._holder.instance, None)

    def kill_engine(self) -> None:
        """Kill the awake engine with all tokens that it has not reported."""
        calls = tuple(self.core.state.requests.calls)
        awake = self.host.awake is not None
        if awake and self.host.driver is not None:
            self.host.driver.kill()
            for call_id in calls:
                self.post(GenerationEnded(call_id=call_id, finish="lost", detail="the engine process died"))
            self.host.kill_awake()

    def post(self, event: Event) -> None:
        """Pass an event to the agent, and execute its actions."""
        self._post((event,), (event.call_id,) if isinstance(event, GenerationEnded) else ())

    def _post(self, events: Iterable[Event], ended: Collection[str] = ()) -> None:
        """Pass simultaneous events to the agent, among them the ends of these calls; execute its actions."""
        if self._dead:
            return
        actions = self.core.receive_all(events, self._event_queue.now_ns)
        if ended:
            note_stopped(self._services.waiting, self.core, ended)
        leases, handlers, put = list[AcquireLease](), self._handlers, self._side_effects.put
        for action in actions:
            if isinstance(action, AcquireLease):
                leases.append(action)
            else:
                handlers.get(type(action), put)(action)
        if leases:
            # The leases of one pull are requested together, in one round trip.
            self._services.after_store(self._entity, self._acquire_leases, leases)

    # Actions. Those without a handler are side effects.

    def _actions(self) -> dict[type, Callable[[Any], None]]:
        services, entity = self._services, self._entity
        return {
            SetTimer: self._set_timer,
            Submit: self._submit,
            Append: lambda action: services.after_store(entity, self._append, action),
            RestoreRequest: lambda action: services.after_store(entity, self._restore, action),
            Pull: lambda action: services.after_broker(entity, self._pull, action),
            Abort: self._abort,
            SwapModel: self._swap,
            PrefetchModel: lambda action: self.host.prefetch(action.model),
            ReleasePrefetch: lambda action: self.host.drop_prefetched(action.model),
            RestartEngine: lambda action: self.host.kill_awake(action.why),
            ProbeEngine: lambda action: services.after_store(entity, self._probe, action),
            Drained: lambda action: None,
        }

    def _abort(self, action: Abort) -> None:
        if action.cut:
            note_stopped(self._services.waiting, self.core, action.call_ids)
        if self.host.driver is not None:
            self.host.driver.abort(action.call_ids)

    def _submit(self, action: Submit) -> None:
        driver, call_id = self.host.driver, action.call.call_id
        if driver is None:
            self.post(GenerationEnded(call_id=call_id, finish="lost", detail="no engine is awake"))
            return
        self._on_submitted(action.id, self._entity)
        self._services.waiting.started(action.id)
        try:
            driver.submit(action.call)
        except InvalidValueError as error:
            self.post(GenerationEnded(call_id=call_id, finish="refused", detail=str(error)))

    def _pull(self, action: Any) -> None:
        if self._dead:
            return
        taken: Sequence[tuple[Delivery, Request]] = ()
        if not self._services.broker_down:
            taken = self._services.broker.get(action.cls.queue, action.limit, self._holder.instance)
        self.post(_pulled(action.group, action.limit, taken))

    def _acquire_leases(self, actions: Any) -> None:
        if not self._dead:
            self._post(
                [LeaseAnswered(id=each.metadata.id, answer=self._acquire_lease(each)) for each in actions]
            )

    def _acquire_lease(self, action: AcquireLease) -> LeaseAnswer | None:
        if self._services.store_down:
            return None
        lease = leases.lease(
            self._services.state,
            action.metadata,
            self._holder,
            action.group,
            self._event_queue.now_ns,
        )
        answer = self._services.commit(lease)
        if isinstance(answer, Granted):
            self._on_leased(action.metadata.id, action.group)
        return answer

    def _restore(self, action: Any) -> None:
        if self._dead:
            return
        answer: LeaseAnswer | None = None
        if not self._services.store_down:
            state, now_ns = self._services.state, self._event_queue.now_ns
            answer = self._services.commit(
                leases.reregister(state, action.metadata, self._holder, action.output, now_ns)
            )
        self.post(LeaseAnswered(id=action.metadata.id, answer=answer))

    def _append(self, action: Any) -> None:
        if self._dead:
            return
        results = None
        if not self._services.store_down:
            results = self._services.commit(
                output_log.append(self._services.state, action.entries, self._event_queue.now_ns)
            )
        self.post(Appended(entries=action.entries, results=None if results is None else tuple(results)))

    def _probe(self, action: Any) -> None:
        self.post(EngineProbed(healthy=self.host.awake is not None, by_token=action.token_s > 0))

    # Engines.

    def _deliver(self, emissions: Sequence[Emission], chunks: Sequence[Chunk]) -> None:
        # All output of an iteration at once. Tokens come first: an end frees capacity for new requests.
        tokens, ends, ended = list(chunks), list[Event](), list[str]()
        for call_id, token_ids, finish, _stop_reason, cached_tokens in emissions:
            if token_ids:
                tokens.append((call_id, token_ids))
            if finish is not None:
                # An abort says nothing of the cache.
                cached = None if finish == "abort" else cached_tokens
                ends.append(GenerationEnded(call_id=call_id, finish=finish, cached_tokens=cached))
                ended.append(call_id)
        self._post([Progress(chunks=tuple(tokens)), *ends] if tokens else ends, ended)

    def _swap(self, action: SwapModel) -> None:
        self._heartbeat()
        self.host.swap(action.model, action.later)

    def _engine_changed(self, event: EngineChanged | WeightsPrefetched) -> None:
        self.post(event)
        if not (isinstance(event, WeightsPrefetched) or self._dead):
            self._heartbeat()

    # Notifications, timers and heartbeats.

    def _on_notice(self, notice: InstanceNotice) -> None:
        # One read of the queue serves all notifications that come before it.
        if isinstance(notice, QueueChanged):
            if self._reading:
                return
            self._reading = True
        at_ns = self._event_queue.now_ns + self._services.notice_ns
        self._event_queue.schedule(at_ns, Rank.NOTICE, self._entity, self._receive, notice)

    def _receive(self, notice: Any) -> None:
        if isinstance(notice, QueueChanged):
            self._reading = False
            if not self._dead:
                self._post(self._read_queue())
        else:
            self.post(notice)

    def _read_queue(self) -> list[Event]:
        if self._services.store_down:
            return []
        return [QueueRead(queue=plans.virtual_queue(self._services.state, self._holder.instance))]

    def _poll(self, _: object) -> None:
        if self._dead:
            return
        events = self._read_queue()
        if not self._services.broker_down:
            taken = self._services.broker.get(self._hold, HOLD_PULL_MAX, self._holder.instance)
            if taken:
                events.append(_pulled(None, 0, taken))
        events.append(Tick())
        self._post(events)
        self._schedule_after(POLL_S, self._poll)

    def _send_heartbeats(self, _: object) -> None:
        if not self._dead:
            self._heartbeat()
            self._schedule_after(HEARTBEAT_S, self._send_heartbeats)

    def _heartbeat(self) -> None:
        if not self._services.store_down:
            status, now_ns = self.core.status(), self._event_queue.now_ns
            # Restarted on its machine, it takes over from its former session at once (`domain.lease.claim`).
            self._services.commit(
                instances.heartbeat(self._services.state, status, HEARTBEAT_TTL_S, now_ns, self._former)
            )

    def _schedule_after(self, seconds: float, do: Callable[[Any], None]) -> None:
        at_ns = self._event_queue.now_ns + round(seconds * 1e9)
        self._event_queue.schedule(at_ns, Rank.PERIODIC, self._entity, do)

    def _set_timer(self, action: SetTimer) -> None:
        at_ns, now_ns = action.at_ns, self._event_queue.now_ns
        if self._timer_at_ns is not None and now_ns < self._timer_at_ns <= at_ns:
            return
        self._timer_at_ns = max(at_ns, now_ns)
        self._event_queue.schedule(self._timer_at_ns, Rank.TIMER, self._entity, self._tick, self._timer_at_ns)

    def _tick(self, at_ns: int) -> None:
        if at_ns == self._timer_at_ns:
            self._timer_at_ns = None
            self.post(Tick())


def _pulled(group: GroupId | None, limit: int, taken: Sequence[tuple[Delivery, Request]]) -> Pulled:
    messages = [PulledMessage(delivery=delivery, request=request) for delivery, request in taken]
    return Pulled(group=group, limit=limit, messages=tuple(messages))
