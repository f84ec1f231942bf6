"""A small honest world around one agent protocol: queues, a real store core, engines, a second agent.

Nothing happens by itself: every answer is a step that a test takes when it likes. Engines are
deterministic (`answer_to`), so a log with a gap, an overlap or a wrong resume shows at once.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.registry import FCFS
from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import (
    Appended,
    Event,
    LeaseAnswered,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.core.state import AgentSettings
from qlm.controller.core.grouping import regroup
from qlm.controller.shell.reindex import as_known
from qlm.domain.actions import (
    Abort,
    Ack,
    AcquireLease,
    Action,
    Append,
    Demote,
    Drained,
    ForwardMessage,
    ProbeEngine,
    Pull,
    PulledMessage,
    RenewDelivery,
    ReportParked,
    ReportResumed,
    RestartEngine,
    RestoreRequest,
    Return,
    SetTimer,
    Submit,
    SwapModel,
)
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, QueueName, RequestId
from qlm.domain.lease_answer import Granted
from qlm.domain.notices import InstanceNotice, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.plan_change import SetQueue
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request
from qlm.domain.virtual_queue import ClassForecast
from qlm.store.core import instances, leases, output_log, plans, requests
from qlm.store.core.effects import Effects
from qlm.store.core.state import State
from support.agent_engines import EngineRoom, answer_to, finish_of
from support.agent_other import HOLD, HOLDER, OTHER, M, N, other_lets_go

S: Final = 1_000_000_000
TTL_S: Final = 3.5

SLOW: Final = EngineSpeed(batched_tokens_max=4, token_s=0.1)
"""So slow that the objective below leaves time for two prompts of four tokens."""

FORECASTS: Final = tuple(
    ClassForecast(
        cls=RequestClass(model, "deadline", target_ms=2000.0), service_s=0.1, answer_s=1.0, rate_rps=1.0
    )
    for model in (M, N)
)


class World(EngineRoom):
    """One agent and what it talks to; methods are steps, `check` is what must hold between them."""

    def __init__(self, new_policy: Callable[[], BatchPolicy] | None = None) -> None:
        """Begin; with `new_policy`, the agent hosts a batch policy."""
        self.now_ns = 1_000 * S
        settings = AgentSettings(
            delivery_renewal_s=20.0, pull_max=3, batching="edf" if new_policy else FCFS, aborts=True
        )
        costs = OperationCosts(speed=dict.fromkeys((M, N), SLOW))
        super().__init__(Agent(HOLDER, "A10", (M, N), settings, costs, new_policy=new_policy))
        self.state = State(self.now_ns)
        self.ended: dict[RequestId, Outcome] = {}
        self.queues: defaultdict[QueueName, list[Request]] = defaultdict(list)
        self.out: dict[int, QueueName] = {}
        self.bodies: dict[int, Request] = {}
        self.others: list[Request] = []
        self.given: dict[int, int] = {}
        self.pulls: list[Pull] = []
        self.leases: list[AcquireLease | RestoreRequest] = []
        self.appends: list[Append] = []
        self.side_effects: deque[Action] = deque()
        self.notices: deque[InstanceNotice] = deque()
        self.drained = 0
        self.groups_made = 0
        self.heartbeat()
        self.send(Tick())

    # the protocol

    def send(self, event: Event) -> None:
        """Give the protocol an event and take its actions."""
        for action in self.agent.receive(event, self.now_ns):
            self._take(action)
        self.note_abandoned()

    def _take(self, action: Action) -> None:  # noqa: C901 - one flat table of actions
        match action:
            case Pull():
                self.pulls.append(action)
            case AcquireLease() | RestoreRequest():
                self.leases.append(action)
            case Append():
                self.appends.append(action)
            case Submit():
                self.submit(action)
            case Abort(call_ids=call_ids):
                self.ask_abort(call_ids)
            case SwapModel(model=model):
                self.start_swap(model)
            case ProbeEngine():
                self.probes.append(action)
            case RestartEngine():
                if self.awake == action.model:
                    self.engine_dies()
            case Drained():
                self.drained += 1
            case SetTimer(at_ns=at_ns):
                assert at_ns > self.now_ns, "a timer in the past spins"
            case (
                Ack()
                | Return()
                | Demote()
                | ForwardMessage()
                | RenewDelivery()
                | ReportParked()
                | ReportResumed()
            ):
                if isinstance(action, Return):
                    self._check_return(action)
                if isinstance(action, Demote):
                    assert action.request == replace(self.requests[action.request.id], cls=action.request.cls)
                    assert action.request.cls == self.requests[action.request.id].cls.missed()
                if isinstance(action, Ack | Return | Demote | ForwardMessage):
                    self._finish_delivery(action.delivery)
                self.side_effects.append(action)
            case _:
                raise AssertionError(f"unexpected {action!r}")

    def _check_return(self, action: Return) -> None:
        """Check that a lease is released only when each granted token is in the log; move the message."""
        assert isinstance(action.delivery.tag, int)
        assert action.home == self.bodies[action.delivery.tag].cls.queue, "a message in another class's queue"
        record = requests.record(self.state, action.id)
        if record is not None and record.lease is not None and record.lease.epoch == action.epoch:
            assert record.output_tokens >= self.granted_tokens.get(action.id, 0), "tokens were thrown away"

    def _finish_delivery(self, delivery: Delivery) -> None:
        assert isinstance(delivery.tag, int)
        self.given[delivery.tag] += 1
        assert self.given[delivery.tag] == 1, "one delivery was ended twice"

    def check(self) -> None:
        """What must hold between any two steps."""
        agent = self.agent
        in_hand = {h.claim.delivery.tag for h in agent.state.requests.all.values()}
        assert len(in_hand) == len(agent.state.requests.all)
        for tag, ends in self.given.items():
            assert ends + (tag in in_hand) == 1, "a delivery is in no place, or in two"
        assert agent.state.queue.pulling == sum(pull.limit for pull in self.pulls)
        assert self.drained == agent.state.drained <= 1
        for id, request in self.requests.items():
            self._check_log(id, request)
            if id not in self.ended:
                assert self._has_message(id), f"{id} was accepted, has not ended, and has no message"

    def _check_log(self, id: RequestId, request: Request) -> None:
        output = output_log.read_output(self.state, id, 0)
        if output is None:
            return
        whole = answer_to(request)
        assert output.token_ids == whole[: len(output.token_ids)], "the log has a gap, an overlap or a lie"
        if output.outcome is not None:
            self.ended[id] = output.outcome
            if output.outcome.ok:
                assert (output.token_ids, output.outcome) == (whole, Outcome(finish_of(request)))

    def _has_message(self, id: RequestId) -> bool:
        out = [self.bodies[tag] for tag in self.out]
        everywhere: list[Request] = [*out, *self.others, *chain(*self.queues.values())]
        return any(request.id == id for request in everywhere)

    # requests, broker, plan

    def accept(self, request: Request) -> None:
        """What a gateway does: publish, then index."""
        self.requests[request.id] = request
        self.queues[request.cls.queue].append(request)
        self.announce(requests.enqueue(self.state, request.metadata(), None, self.now_ns)[1])

    def plan(self, rotate: int) -> None:
        """Act as a controller: expire leases, group the waiting requests, reorder this virtual queue."""
        self.announce(leases.expire_leases(self.state, self.now_ns)[1])
        self._index()
        order: list[GroupId] = []
        for cls in plans.view(self.state, self.now_ns).classes:
            changes, groups, _ = regroup(
                cls, size_max=4, now_ns=self.now_ns, linger_s=1.0, new_id=lambda _: self._new_group()
            )
            self.announce(plans.apply(self.state, changes, self.now_ns)[1])
            order += [group.id for group in groups]
        turn = rotate % max(1, len(order))
        queue = SetQueue(instance=HOLDER.instance, groups=(*order[turn:], *order[:turn]))
        self.announce(plans.apply(self.state, [queue], self.now_ns)[1])

    def _index(self) -> None:
        """Bring every class queue and the store in line, as the controller's reconciler does."""
        for queue in [queue for queue in self.queues if queue != HOLD]:
            messages, self.queues[queue] = self.queues[queue], []
            for request in dict.fromkeys(messages):
                found, effects = requests.enqueue(self.state, request.metadata(), None, self.now_ns)
                self.announce(effects)
                lease = found.record.lease
                if lease is not None:
                    (self.queues[HOLD] if lease.holder == HOLDER else self.others).append(request)
                elif found.record.outcome is None:
                    home = as_known(request, found.record)
                    self.queues[home.cls.queue].append(home)

    def _new_group(self) -> GroupId:
        self.groups_made += 1
        return GroupId(f"g{self.groups_made}")

    def read_queue(self) -> None:
        queue = plans.virtual_queue(self.state, HOLDER.instance)
        self.send(QueueRead(queue=replace(queue, forecasts=FORECASTS)))

    def _hand_out(self, queue: QueueName, limit: int) -> tuple[PulledMessage, ...]:
        taken, self.queues[queue] = self.queues[queue][:limit], self.queues[queue][limit:]
        messages = []
        for request in taken:
            tag = len(self.given)
            self.given[tag] = 0
            self.out[tag], self.bodies[tag] = queue, request
            messages.append(PulledMessage(delivery=Delivery(queue, tag, b"", False), request=request))
        return tuple(messages)

    def answer_pull(self, pull: Pull, *, away: bool = False) -> None:
        self.pulls.remove(pull)
        messages = () if away else self._hand_out(pull.cls.queue, pull.limit)
        self.send(Pulled(group=pull.group, limit=pull.limit, messages=messages))

    def poll_hold(self) -> None:
        if messages := self._hand_out(HOLD, 64):
            self.send(Pulled(group=None, limit=0, messages=messages))

    def lose_connection(self) -> None:
        """All that is handed out to us goes back to where it was, to be delivered again."""
        for tag in list(self.out):
            self._requeue(tag)

    def _requeue(self, tag: int) -> None:
        queue = self.out.pop(tag, None)
        if queue is not None:
            self.queues[queue].insert(0, self.bodies[tag])

    def _move(self, tag: int, messages: list[Request]) -> None:
        """Published first, then acknowledged: a lost delivery leaves a duplicate."""
        messages.append(self.bodies[tag])
        self.out.pop(tag, None)

    def write_side_effect(self) -> None:
        """Carry out the oldest bookkeeping action."""
        match self.side_effects.popleft():
            case Ack(delivery=Delivery(tag=int(tag))):
                self.out.pop(tag, None)
            case Return(epoch=epoch, id=id, delivery=Delivery(queue=queue, tag=int(tag)), home=home, why=why):
                if epoch is not None:
                    self.announce(leases.release(self.state, id, epoch, why, self.now_ns)[1])
                if queue == home:
                    self._requeue(tag)
                else:
                    self._move(tag, self.queues[home])
            case Demote(request=request, epoch=epoch, delivery=Delivery(tag=int(tag)), why=why):
                self.queues[request.cls.queue].append(request)
                self.announce(leases.demote(self.state, request, epoch, why, self.now_ns)[1])
                self.out.pop(tag, None)
            case ForwardMessage(delivery=Delivery(tag=int(tag)), holder=holder):
                assert holder == OTHER
                self._move(tag, self.others)
            case RenewDelivery(delivery=Delivery(tag=int(tag))):
                self._move(tag, self.queues[HOLD])
            case ReportParked(id=id, epoch=epoch, why=why):
                leases.park(self.state, id, epoch, why, self.now_ns)
            case ReportResumed(id=id, epoch=epoch):
                leases.resume(self.state, id, epoch, self.now_ns)

    # store

    def answer_lease(self, pending: AcquireLease | RestoreRequest, *, reached: bool, answered: bool) -> None:
        """Answer a lease; not `reached`: nothing happened; not `answered`: it did, unheard."""
        self.leases.remove(pending)
        answer = None
        if reached:
            if isinstance(pending, AcquireLease):
                answer, effects = leases.lease(
                    self.state, pending.metadata, HOLDER, pending.group, self.now_ns
                )
                self.granted_tokens[pending.metadata.id] = (
                    len(answer.output) if isinstance(answer, Granted) else 0
                )
            else:
                answer, effects = leases.reregister(
                    self.state, pending.metadata, HOLDER, pending.output, self.now_ns
                )
            self.announce(effects)
        self.send(LeaseAnswered(id=pending.metadata.id, answer=answer if answered else None))

    def answer_append(self, *, reached: bool, answered: bool, which: int = 0) -> None:
        """Answer one of the appends under way: tokens and ends are written apart, in any order."""
        append = self.appends.pop(which % len(self.appends))
        results = None
        if reached:
            results, effects = output_log.append(self.state, append.entries, self.now_ns)
            self.announce(effects)
        known = None if results is None or not answered else tuple(results)
        self.send(Appended(entries=append.entries, results=known))

    def announce(self, effects: Effects) -> None:
        """Keep the notices to us that a step of the store caused."""
        self.notices.extend(notice for instance, notice in effects.notices if instance == HOLDER.instance)

    def tell(self) -> None:
        """Deliver the oldest notice."""
        notice = self.notices.popleft()
        if isinstance(notice, QueueChanged):
            self.read_queue()
        else:
            self.send(notice)

    def heartbeat(self) -> None:
        instances.heartbeat(self.state, self.agent.status(), TTL_S, self.now_ns)

    def wipe(self) -> None:
        """Empty the store; the controller indexes what the class queues hold."""
        self.check()
        self.now_ns += 1
        self.state = State(self.now_ns)
        self.heartbeat()
        for queue, waiting in self.queues.items():
            for request in waiting if queue != HOLD else ():
                requests.enqueue(self.state, request.metadata(), None, self.now_ns)

    # time

    def wait(self, seconds: float, *, silent: bool = False) -> None:
        """Let time pass, then the poll comes; a silent agent lets its heartbeat lapse."""
        self.now_ns += round(seconds * S)
        self.send(Tick())
        if not silent:
            self.heartbeat()

    def flow(self, steps: int = 4) -> None:
        """Let what waits come in and start, without a fault, or only the first steps of that way."""
        self.plan(0)
        self.read_queue()
        for pull in list(self.pulls) if steps > 1 else ():
            self.answer_pull(pull)
        for pending in list(self.leases) if steps > 2 else ():
            self.answer_lease(pending, reached=True, answered=True)
        for call in self.calls if steps > 3 else ():
            if not call.arrived:
                self.arrive(call)

    # the good end

    def calm(self) -> None:
        """One round in which everybody answers honestly and no fault happens."""
        self.wait(0.25)
        self.announce(requests.expire(self.state, self.now_ns)[1])
        for request in list(self.others):
            other_lets_go(self, request, finished=True)
        while self.deaths:
            self.tell_death()
        if self.swap is not None:
            self.end_swap(ok=True)
        self.poll_hold()
        self.flow()
        self.calm_engines()
        while self.appends:
            self.answer_append(reached=True, answered=True)
        while self.notices:
            self.tell()
        while self.side_effects:
            self.write_side_effect()
        self.check()
