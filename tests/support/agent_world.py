"""A small honest world around one agent protocol: queues, a real store core, engines, a second agent.

Nothing happens by itself: every answer is a step that a test takes when it likes. Engines are
deterministic (`answer_to`), so a log with a gap, an overlap or a wrong resume shows at once.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from qlm.agents.events import (
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
)
from qlm.agents.held import Phase
from qlm.agents.protocol import AgentProtocol, AgentSettings
from qlm.controller.grouping import regroup
from qlm.domain.actions import (
    Abort,
    Ack,
    Action,
    Append,
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
)
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.ids import GroupId, InstanceId, ModelId, QueueName, RequestId, SessionId, TokenIds
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.notices import InstanceNotice, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.plan_change import SetQueue
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request
from qlm.store.core import StoreCore
from qlm.store.effects import Effects

S: Final = 1_000_000_000
M, N, FOREIGN = ModelId("m"), ModelId("n"), ModelId("x")
HOLDER = Holder(InstanceId("i"), SessionId("s"))
OTHER = Holder(InstanceId("other"), SessionId("o"))
HOLD = QueueName("qlm.hold.i")
EOS: Final = 7
TTL_S: Final = 3.5
CAPACITY = EngineCapacity(kv_tokens=128, block_tokens=16, seqs_max=3, context_tokens=4096)


def answer_to(request: Request) -> TokenIds:
    """The one right answer: it ends by itself after as many tokens as the tenant's name says."""
    natural = int(request.tenant)
    return (*range(100, 100 + natural - 1), EOS)[: request.sampling.max_tokens]


def finish_of(request: Request) -> str:
    """How an engine ends that answer."""
    return "stop" if answer_to(request)[-1] == EOS else "length"


@dataclass(slots=True, eq=False)
class Running:
    """A generation: from its submission until the protocol has heard its end."""

    request: Request
    call: EngineCall
    arrived: bool = False
    abort_asked: bool = False
    finish: str | None = None
    abandoned: bool = False
    made: int = 0


class World:
    """One agent and what it talks to; methods are steps, `check` is what must hold between them."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * S
        settings = AgentSettings(custody_s=20.0, pull_max=3)
        self.agent = AgentProtocol(HOLDER, "A10", (M, N), settings)
        self.core = StoreCore(self.now_ns)
        self.requests: dict[RequestId, Request] = {}
        self.ended: dict[RequestId, Outcome] = {}
        self.queues: defaultdict[QueueName, list[Request]] = defaultdict(list)
        self.out: dict[int, Request] = {}
        self.others: list[Request] = []
        self.given: dict[int, int] = {}
        self.pulls: list[Pull] = []
        self.leases: list[TakeLease | Reregister] = []
        self.appends: list[Append] = []
        self.books: deque[Action] = deque()
        self.calls: list[Running] = []
        self.aborts_sent: set[str] = set()
        self.probes = 0
        self.swap: ModelId | None = None
        self.awake: ModelId | None = None
        self.asleep: set[ModelId] = set()
        self.deaths: list[EngineChanged] = []
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
        for call in self.calls:
            if call.call.call_id not in self.agent.calls and call.finish is None:
                assert call.call.call_id in self.aborts_sent, "a generation was forgotten and not aborted"
                call.abandoned = True

    def _take(self, action: Action) -> None:  # noqa: C901 - one flat table of actions
        match action:
            case Pull():
                self.pulls.append(action)
            case TakeLease() | Reregister():
                self.leases.append(action)
            case Append():
                self.appends.append(action)
            case Submit():
                self._submit(action)
            case Abort(call_ids=call_ids):
                self.aborts_sent.update(call_ids)
                for call in self.calls:
                    # An abort that overtakes its submission is ignored by the engine.
                    call.abort_asked |= call.arrived and call.call.call_id in call_ids
            case SwapModel(model=model):
                self._start_swap(model)
            case ProbeEngine():
                self.probes += 1
            case Drained():
                self.drained += 1
            case SetTimer(at_ns=at_ns):
                assert at_ns > self.now_ns, "a timer in the past spins"
            case Ack() | Return() | HandOver() | Renew() | NoteParked() | NoteResumed():
                if isinstance(action, Ack | Return | HandOver):
                    self._finish_delivery(action.delivery)
                self.books.append(action)
            case _:
                raise AssertionError(f"unexpected {action!r}")

    def _finish_delivery(self, delivery: Delivery) -> None:
        assert isinstance(delivery.tag, int)
        self.given[delivery.tag] += 1
        assert self.given[delivery.tag] == 1, "one delivery was ended twice"

    def _submit(self, action: Submit) -> None:
        request = self.requests[action.id]
        done = len(action.call.prompt_ids) - request.prompt_tokens
        twins = [c for c in self.calls if c.request.id == action.id and not c.abandoned and not c.finish]
        assert not twins, "submitted while another of its calls runs"
        assert action.call.call_id not in {c.call.call_id for c in self.calls}
        assert action.call.prompt_ids[request.prompt_tokens :] == answer_to(request)[:done]
        assert 1 <= action.call.sampling.max_tokens == request.sampling.max_tokens - done
        assert self._generating() <= CAPACITY.seqs_max, "more running than the batch has places"
        assert self.awake in (None, request.model), "submitted to another model's engine"
        lost = None if self.awake else "lost"
        self.calls.append(Running(request, action.call, made=done, finish=lost))

    def _generating(self) -> int:
        return sum(h.phase in (Phase.RUNNING, Phase.ABORTING) for h in self.agent.held.values())

    def check(self) -> None:
        """What must hold between any two steps."""
        agent = self.agent
        in_hand = {h.delivery.tag for h in agent.held.values()}
        assert len(in_hand) == len(agent.held)
        for tag, ends in self.given.items():
            assert ends + (tag in in_hand) == 1, "a delivery is in no place, or in two"
        assert agent.pulling == sum(pull.limit for pull in self.pulls)
        assert self.drained == agent.drained <= 1
        for id, request in self.requests.items():
            self._check_log(id, request)
            if id not in self.ended:
                assert self._has_message(id), f"{id} was accepted, has not ended, and has no message"

    def _check_log(self, id: RequestId, request: Request) -> None:
        output = self.core.read_output(id, 0)
        if output is None:
            return
        whole = answer_to(request)
        assert output.token_ids == whole[: len(output.token_ids)], "the log has a gap, an overlap or a lie"
        if output.outcome is not None:
            self.ended[id] = output.outcome
            if output.outcome.ok:
                assert (output.token_ids, output.outcome) == (whole, Outcome(finish_of(request)))

    def _has_message(self, id: RequestId) -> bool:
        everywhere: list[Request] = [*self.out.values(), *self.others, *chain(*self.queues.values())]
        return any(request.id == id for request in everywhere)

    # requests, broker, plan

    def accept(self, request: Request) -> None:
        """What a gateway does: publish, then index."""
        self.requests[request.id] = request
        self.queues[request.cls.queue].append(request)
        self.announce(self.core.enqueue(request.card(), None, self.now_ns)[1])

    def plan(self, rotate: int) -> None:
        """What a controller does: reap, group what waits, and set our virtual queue in some order."""
        self.announce(self.core.reap(self.now_ns)[1])
        self._index()
        order: list[GroupId] = []
        for cls in self.core.view(self.now_ns).classes:
            changes, groups = regroup(
                cls, size_max=4, now_ns=self.now_ns, linger_s=1.0, new_id=lambda _: self._new_group()
            )
            self.announce(self.core.apply(changes, self.now_ns)[1])
            order += [group.id for group in groups]
        turn = rotate % max(1, len(order))
        queue = SetQueue(instance=HOLDER.instance, groups=(*order[turn:], *order[:turn]))
        self.announce(self.core.apply([queue], self.now_ns)[1])

    def _index(self) -> None:
        """Bring every class queue and the store in line, as the controller's upkeep does."""
        for queue in [queue for queue in self.queues if queue != HOLD]:
            messages, self.queues[queue] = self.queues[queue], []
            for request in messages:
                found, effects = self.core.enqueue(request.card(), None, self.now_ns)
                self.announce(effects)
                lease = found.record.lease
                if lease is not None:
                    (self.queues[HOLD] if lease.holder == HOLDER else self.others).append(request)
                elif found.record.outcome is None:
                    self.queues[queue].append(request)

    def _new_group(self) -> GroupId:
        self.groups_made += 1
        return GroupId(f"g{self.groups_made}")

    def read_queue(self) -> None:
        self.send(QueueRead(queue=self.core.virtual_queue(HOLDER.instance)))

    def _hand_out(self, queue: QueueName, limit: int) -> tuple[PulledMessage, ...]:
        taken, self.queues[queue] = self.queues[queue][:limit], self.queues[queue][limit:]
        messages = []
        for request in taken:
            tag = len(self.given)
            self.given[tag] = 0
            self.out[tag] = request
            messages.append(PulledMessage(delivery=Delivery(queue, tag, b"", False), request=request))
        return tuple(messages)

    def answer_pull(self, pull: Pull, *, away: bool = False) -> None:
        self.pulls.remove(pull)
        messages = () if away else self._hand_out(pull.cls.queue, pull.limit)
        self.send(Pulled(group=pull.group, asked=pull.limit, messages=messages))

    def poll_hold(self) -> None:
        if messages := self._hand_out(HOLD, 64):
            self.send(Pulled(group=None, asked=0, messages=messages))

    def lose_connection(self) -> None:
        """All that is handed out to us goes back to its class queue, to be delivered again."""
        for tag in list(self.out):
            self._requeue(tag)

    def _requeue(self, tag: int) -> None:
        request = self.out.pop(tag, None)
        if request is not None:
            self.queues[request.cls.queue].insert(0, request)

    def write_book(self) -> None:
        """Carry out the oldest bookkeeping action; on a delivery that is lost it has no effect."""
        match self.books.popleft():
            case Ack(delivery=Delivery(tag=int(tag))):
                self.out.pop(tag, None)
            case Return(epoch=epoch, id=id, delivery=Delivery(tag=int(tag)), why=why):
                if epoch is not None:
                    self.announce(self.core.release(id, epoch, why, self.now_ns)[1])
                self._requeue(tag)
            case HandOver(delivery=Delivery(tag=int(tag)), holder=holder):
                assert holder == OTHER
                if (request := self.out.pop(tag, None)) is not None:
                    self.others.append(request)
            case Renew(delivery=Delivery(tag=int(tag))):
                # Published first, then acknowledged: a lost delivery leaves a duplicate.
                held = [h for h in self.agent.held.values() if h.delivery.tag == tag]
                known = self.out.pop(tag, None) or (held[0].request if held else None)
                if known is not None:
                    self.queues[HOLD].append(known)
            case NoteParked(id=id, epoch=epoch, why=why):
                self.core.park(id, epoch, why, self.now_ns)
            case NoteResumed(id=id, epoch=epoch):
                self.core.resume(id, epoch, self.now_ns)

    # store

    def answer_lease(self, asked: TakeLease | Reregister, *, reached: bool, answered: bool) -> None:
        """Answer a lease; not `reached`: nothing happened; not `answered`: it did, unheard."""
        self.leases.remove(asked)
        answer = None
        if reached:
            if isinstance(asked, TakeLease):
                answer, effects = self.core.lease(asked.card, HOLDER, asked.group, self.now_ns)
            else:
                answer, effects = self.core.reregister(asked.card, HOLDER, asked.output, self.now_ns)
            self.announce(effects)
        self.send(LeaseAnswered(id=asked.card.id, answer=answer if answered else None))

    def answer_append(self, *, reached: bool, answered: bool) -> None:
        (append,) = self.appends
        self.appends.clear()
        results = None
        if reached:
            results, effects = self.core.append(append.entries, self.now_ns)
            self.announce(effects)
        told = None if results is None or not answered else tuple(results)
        self.send(Appended(entries=append.entries, results=told))

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
        self.core.heartbeat(self.agent.status(), TTL_S, self.now_ns)

    def wipe(self) -> None:
        """Empty the store; the controller indexes what the class queues hold."""
        self.check()
        self.now_ns += 1
        self.core = StoreCore(self.now_ns)
        self.heartbeat()
        for queue, requests in self.queues.items():
            for request in requests if queue != HOLD else ():
                self.core.enqueue(request.card(), None, self.now_ns)

    # the other agent

    def other_pulls(self, queue: QueueName) -> None:
        """The other agent takes the first message of a class queue and does with it what an agent does."""
        other = InstanceStatus(holder=OTHER, accelerator="A10", models=(M, N, FOREIGN))
        self.core.heartbeat(other, 1e6, self.now_ns)
        request = self.queues[queue].pop(0)
        answer, effects = self.core.lease(request.card(), OTHER, None, self.now_ns)
        self.announce(effects)
        if isinstance(answer, Granted):
            self.others.append(request)
        elif getattr(answer, "holder", None) == HOLDER:
            self.queues[HOLD].append(request)

    def other_lets_go(self, request: Request, *, finished: bool) -> None:
        """The other agent ends a request, or gives it back."""
        self.others.remove(request)
        record = self.core.record(request.id)
        if record is None or record.lease is None or record.lease.holder != OTHER:
            if record is None or record.outcome is None:
                self.queues[request.cls.queue].append(request)
            return
        epoch = record.lease.epoch
        if not finished:
            self.announce(self.core.release(request.id, epoch, "returned", self.now_ns)[1])
            self.queues[request.cls.queue].append(request)
            return
        entry = LogEntry(
            id=request.id,
            epoch=epoch,
            offset=record.output_tokens,
            token_ids=answer_to(request)[record.output_tokens :],
            outcome=Outcome(finish_of(request)),
        )
        self.announce(self.core.append([entry], self.now_ns)[1])

    # engines

    def _start_swap(self, model: ModelId) -> None:
        assert self.swap is None, "a swap began while another was under way"
        assert all(c.finish or c.abandoned for c in self.calls), "a swap began under running requests"
        self.swap = model
        if self.awake is not None:
            self.break_calls()
            self.asleep.add(self.awake)
            old, self.awake = self.awake, None
            self.deaths.append(EngineChanged(model=old, state=EngineState.ASLEEP))

    def break_calls(self) -> None:
        for call in self.calls:
            call.finish = call.finish or "lost"

    def end_swap(self, *, ok: bool) -> None:
        """The host's answer to a swap, after all it had to say before."""
        model, self.swap = self.swap, None
        assert model is not None
        while self.deaths:
            self.send(self.deaths.pop(0))
        self.asleep.discard(model)
        if ok:
            self.awake = model
            self.send(EngineChanged(model=model, state=EngineState.AWAKE, capacity=CAPACITY))
        else:
            self.send(EngineChanged(model=model, state=EngineState.COLD))
            self.send(EngineChanged(model=model, state=EngineState.FAILED, error="it did not start"))

    def engine_dies(self) -> None:
        assert self.awake is not None
        self.break_calls()
        self.deaths.append(EngineChanged(model=self.awake, state=EngineState.FAILED, error="it died"))
        self.awake = None

    def tell_death(self) -> None:
        self.send(self.deaths.pop(0))

    def answer_probe(self, *, healthy: bool) -> None:
        self.probes -= 1
        self.send(EngineProbed(healthy=healthy and self.awake is not None))

    def arrive(self, call: Running) -> None:
        """A submission reaches its engine; only from now on can it be aborted."""
        call.arrived = True

    def generate(self, call: Running, tokens: int) -> None:
        """Let a call make some tokens; its end, if it came to it, is told later."""
        whole = answer_to(call.request)
        made = whole[call.made : call.made + tokens]
        call.made += len(made)
        if call.made == len(whole):
            call.finish = finish_of(call.request)
        self.send(Progress(call_id=call.call.call_id, token_ids=made))

    def end_call(self, call: Running, finish: str) -> None:
        call.finish = finish
        self.calls.remove(call)
        self.send(GenerationEnded(call_id=call.call.call_id, finish=finish, detail="told by the engine"))

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
        for asked in list(self.leases) if steps > 2 else ():
            self.answer_lease(asked, reached=True, answered=True)
        for call in self.calls if steps > 3 else ():
            if not call.arrived:
                self.arrive(call)

    # the good end

    def calm(self) -> None:
        """One round in which everybody answers honestly and no fault happens."""
        self.wait(0.25)
        self.announce(self.core.expire(self.now_ns)[1])
        for request in list(self.others):
            self.other_lets_go(request, finished=True)
        while self.deaths:
            self.tell_death()
        if self.swap is not None:
            self.end_swap(ok=True)
        self.poll_hold()
        self.flow()
        self._calm_engine(list(self.calls))
        while self.appends:
            self.answer_append(reached=True, answered=True)
        while self.notices:
            self.tell()
        while self.books:
            self.write_book()
        self.check()

    def _calm_engine(self, calls: Iterable[Running]) -> None:
        for _ in range(self.probes):
            self.answer_probe(healthy=True)
        for call in calls:
            if call.finish is None and call.abort_asked:
                call.finish = "abort"
            elif call.finish is None:
                self.generate(call, 1)
            if call.finish is not None:
                self.end_call(call, call.finish)
