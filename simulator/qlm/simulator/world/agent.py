"""The interpreter of the agent protocol in virtual time: carries out its actions and decides nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from qlm.agents.events import (
    Appended,
    EngineChanged,
    EngineProbed,
    Event,
    GenerationEnded,
    HeldAhead,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.interpreter import HEARTBEAT_S, HEARTBEAT_TTL_S, POLL_S
from qlm.agents.operation_costs import OperationCosts
from qlm.agents.protocol import AgentProtocol, AgentSettings
from qlm.broker.topology import hold_queue
from qlm.domain.actions import (
    Abort,
    Append,
    CoolModel,
    Drained,
    ProbeEngine,
    Pull,
    PulledMessage,
    Reregister,
    SetTimer,
    Submit,
    SwapModel,
    TakeLease,
    WarmModel,
)
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineState
from qlm.domain.ids import GroupId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.notices import InstanceNotice, QueueChanged
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request
from qlm.simulator.engine.model import Chunk, Emission
from qlm.simulator.scenario import SimulatedInstance
from qlm.simulator.world.books import Books
from qlm.simulator.world.engine_host import HostedModel, SimulatedHost
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import Rank

_HOLD_PULL_MAX = 64


class SimulatedAgent:
    """One life of an agent with its engines; after a crash, a new one takes its place.

    Args:
        parts: Store, broker, network.
        instance: Which instance.
        entity: Its number.
        life: How many lives it had before.
        settings: Of the protocol.
        models: What its engines are.
        host_memory_bytes: For sleeping models.
        slowness: Factor on its engines' times at present.
        submitted: Told of each generation that starts.
        evicted: Told of each request that is evicted.
        leased: Told of each lease that is granted, with the group it was pulled for.
    """

    def __init__(
        self,
        parts: SharedParts,
        instance: SimulatedInstance,
        entity: int,
        *,
        life: int,
        settings: AgentSettings,
        models: Mapping[ModelId, HostedModel],
        host_memory_bytes: int,
        slowness: Callable[[], float],
        submitted: Callable[[RequestId, int], None],
        evicted: Callable[[RequestId], None],
        leased: Callable[[RequestId, GroupId | None], None],
    ) -> None:
        holder = Holder(instance.id, SessionId(f"life-{life}"))
        costs = OperationCosts(
            swap={model: hosted.cost for model, hosted in models.items()},
            kv={model: hosted.kv_cost for model, hosted in models.items()},
            host_memory_bytes=host_memory_bytes,
        )
        self.protocol = AgentProtocol(holder, instance.kind, instance.models, settings, costs)
        self.host = SimulatedHost(
            parts.timeline,
            entity,
            models,
            host_memory_bytes=host_memory_bytes,
            deliver=self._deliver,
            changed=self._engine_changed,
            slowness=slowness,
            tiers=instance.swap_tiers,
        )
        self._parts = parts
        self._timeline = parts.timeline
        self._entity = entity
        self._hold = hold_queue(instance.id)
        self._books = Books(parts, instance.id, entity, evicted)
        self._submitted = submitted
        self._leased = leased
        self._timer_at_ns: int | None = None
        self._reading = False
        self._dead = False
        self._handlers = self._actions()

    def start(self, awake: ModelId | None) -> None:
        """Come up; `awake` is loaded already."""
        self._parts.on_notice[self.protocol.holder.instance] = self._noticed
        if awake is not None:
            self.host.start_awake(awake)
        self._beat(None)
        self._poll(None)

    def kill(self) -> None:
        """Die at once with all engines; the broker takes back what was handed out."""
        self._dead = True
        self.host.close()
        self._books.dead = True
        self._parts.queue.lose(self.protocol.holder.instance)
        self._parts.on_notice.pop(self.protocol.holder.instance, None)

    def kill_engine(self) -> None:
        """Lose the awake engine with what it generated but had not handed out."""
        calls = tuple(self.protocol.calls)
        awake = self.host.awake is not None
        if awake and self.host.driver is not None:
            self.host.driver.kill()
            for call_id in calls:
                self.post(GenerationEnded(call_id=call_id, finish="lost", detail="the engine process died"))
            self.host.kill_awake()

    def post(self, event: Event) -> None:
        """Give the protocol an event and carry out what it answers."""
        self._post((event,))

    def _post(self, events: Iterable[Event]) -> None:
        """Give the protocol the events of this moment and carry out what it answers."""
        if self._dead:
            return
        leases: list[TakeLease] = []
        for action in self.protocol.receive_all(events, self._timeline.now_ns):
            if isinstance(action, TakeLease):
                leases.append(action)
            else:
                self._handlers.get(type(action), self._books.put)(action)
        if leases:
            # Leases of one pull are asked for at once, in one round trip.
            self._parts.store_answers(self._entity, self._lease, leases)

    # actions; those that are not here are written down

    def _actions(self) -> dict[type, Callable[[Any], None]]:
        parts, entity = self._parts, self._entity
        return {
            SetTimer: self._set_timer,
            Submit: self._submit,
            Append: lambda action: parts.store_answers(entity, self._append, action),
            Reregister: lambda action: parts.store_answers(entity, self._reregister, action),
            Pull: lambda action: parts.broker_answers(entity, self._pull, action),
            Abort: self._abort,
            SwapModel: lambda action: self.host.swap(action.model, action.later),
            WarmModel: lambda action: self.host.warm(action.model),
            CoolModel: lambda action: self.host.cool(action.model),
            ProbeEngine: lambda action: parts.store_answers(entity, self._probed),
            Drained: lambda action: None,
        }

    def _abort(self, action: Abort) -> None:
        if self.host.driver is not None:
            self.host.driver.abort(action.call_ids)

    def _submit(self, action: Submit) -> None:
        driver, call_id = self.host.driver, action.call.call_id
        if driver is None:
            self.post(GenerationEnded(call_id=call_id, finish="lost", detail="no engine is awake"))
            return
        self._submitted(action.id, self._entity)
        try:
            driver.submit(action.call)
        except InvalidValueError as error:
            self.post(GenerationEnded(call_id=call_id, finish="refused", detail=str(error)))

    def _pull(self, action: Any) -> None:
        if self._dead:
            return
        taken: Sequence[tuple[Delivery, Request]] = ()
        if not self._parts.broker_down:
            taken = self._parts.queue.get(action.cls.queue, action.limit, self.protocol.holder.instance)
        self.post(_pulled(action.group, action.limit, taken))

    def _lease(self, actions: Any) -> None:
        if not self._dead:
            self._post([LeaseAnswered(id=action.card.id, answer=self._take(action)) for action in actions])

    def _take(self, action: TakeLease) -> LeaseAnswer | None:
        if self._parts.store_down:
            return None
        lease = self._parts.store.lease(
            action.card, self.protocol.holder, action.group, self._timeline.now_ns
        )
        answer = self._parts.commit(lease)
        if isinstance(answer, Granted):
            self._leased(action.card.id, action.group)
        return answer

    def _reregister(self, action: Any) -> None:
        if self._dead:
            return
        answer: LeaseAnswer | None = None
        if not self._parts.store_down:
            holder, now_ns = self.protocol.holder, self._timeline.now_ns
            answer = self._parts.commit(
                self._parts.store.reregister(action.card, holder, action.output, now_ns)
            )
        self.post(LeaseAnswered(id=action.card.id, answer=answer))

    def _append(self, action: Any) -> None:
        if self._dead:
            return
        results = None
        if not self._parts.store_down:
            results = self._parts.commit(self._parts.store.append(action.entries, self._timeline.now_ns))
        self.post(Appended(entries=action.entries, results=None if results is None else tuple(results)))

    def _probed(self, _: object) -> None:
        self.post(EngineProbed(healthy=self.host.awake is not None))

    # engines

    def _deliver(self, emissions: Sequence[Emission], chunks: Sequence[Chunk]) -> None:
        """Hand out what an iteration gave at once: tokens first, since an end makes room, then ends."""
        tokens, ended = list(chunks), list[Event]()
        for call_id, token_ids, finish, _stop_reason, _cached_tokens in emissions:
            if token_ids:
                tokens.append((call_id, token_ids))
            if finish is not None:
                ended.append(GenerationEnded(call_id=call_id, finish=finish))
        if tokens:
            ended.insert(0, Progress(chunks=tuple(tokens)))
        self._post(ended)

    def _engine_changed(self, event: EngineChanged | HeldAhead) -> None:
        self.post(event)
        if isinstance(event, HeldAhead):
            return
        if event.state in (EngineState.AWAKE, EngineState.FAILED) and not self._dead:
            self._heartbeat()

    # notices, timers and heartbeats

    def _noticed(self, notice: InstanceNotice) -> None:
        """Read the queue once for all notices that come before it is read."""
        if isinstance(notice, QueueChanged):
            if self._reading:
                return
            self._reading = True
        at_ns = self._timeline.now_ns + self._parts.notice_ns
        self._timeline.at(at_ns, Rank.NOTICE, self._entity, self._heard, notice)

    def _heard(self, notice: Any) -> None:
        if isinstance(notice, QueueChanged):
            self._reading = False
            if not self._dead:
                self._post(self._read_queue())
        else:
            self.post(notice)

    def _read_queue(self) -> list[Event]:
        if self._parts.store_down:
            return []
        return [QueueRead(queue=self._parts.store.virtual_queue(self.protocol.holder.instance))]

    def _poll(self, _: object) -> None:
        if self._dead:
            return
        events = self._read_queue()
        if not self._parts.broker_down:
            taken = self._parts.queue.get(self._hold, _HOLD_PULL_MAX, self.protocol.holder.instance)
            if taken:
                events.append(_pulled(None, 0, taken))
        events.append(Tick())
        self._post(events)
        self._again(POLL_S, self._poll)

    def _beat(self, _: object) -> None:
        if not self._dead:
            self._heartbeat()
            self._again(HEARTBEAT_S, self._beat)

    def _heartbeat(self) -> None:
        if not self._parts.store_down:
            status, now_ns = self.protocol.status(), self._timeline.now_ns
            self._parts.commit(self._parts.store.heartbeat(status, HEARTBEAT_TTL_S, now_ns))

    def _again(self, seconds: float, do: Callable[[Any], None]) -> None:
        self._timeline.at(self._timeline.now_ns + round(seconds * 1e9), Rank.BEAT, self._entity, do)

    def _set_timer(self, action: SetTimer) -> None:
        at_ns, now_ns = action.at_ns, self._timeline.now_ns
        if self._timer_at_ns is not None and now_ns < self._timer_at_ns <= at_ns:
            return
        self._timer_at_ns = max(at_ns, now_ns)
        self._timeline.at(self._timer_at_ns, Rank.TIMER, self._entity, self._tick, self._timer_at_ns)

    def _tick(self, at_ns: int) -> None:
        if at_ns == self._timer_at_ns:
            self._timer_at_ns = None
            self.post(Tick())


def _pulled(group: GroupId | None, asked: int, taken: Sequence[tuple[Delivery, Request]]) -> Pulled:
    messages = [PulledMessage(delivery=delivery, request=request) for delivery, request in taken]
    return Pulled(group=group, asked=asked, messages=tuple(messages))
