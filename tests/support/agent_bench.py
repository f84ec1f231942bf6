"""A protocol on a bench: events go in one by one; leases and appends are answered by a healthy store."""

from collections.abc import Callable
from typing import TypeVar

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.core.agent import NO_COSTS, Agent
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import (
    Appended,
    EngineChanged,
    GenerationEnded,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.activity import WaitingModels
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import AcquireLease, Action, Append, Pull, PulledMessage, Submit
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId, ModelId, QueueName, RequestId, SessionId, TokenIds
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.lease_answer import Granted, LeaseAnswer
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Request
from qlm.domain.virtual_queue import VirtualQueue
from support.requests import a_request

HOLDER = Holder(InstanceId("i"), SessionId("s"))
M, N = ModelId("m"), ModelId("n")
S = 1_000_000_000
A = TypeVar("A")


def delivery_of(request: Request, tag: int = 0) -> Delivery:
    return Delivery(QueueName("q"), f"{request.id}/{tag}", b"", False)


def group_of(request: Request, count: int = 1, name: str = "g") -> Group:
    return Group(id=GroupId(name), cls=request.cls, seq=1, count=count, head_arrival_ns=request.arrival_ns)


class Bench:
    """A protocol on a bench: collects actions, answers leases and appends as a healthy store would."""

    def __init__(
        self,
        *,
        seqs_max: int = 2,
        kv_tokens: int = 4096,
        settings: AgentSettings | None = None,
        costs: OperationCosts = NO_COSTS,
        waiting: WaitingModels | None = None,
        accelerator: str = "A10",
        new_policy: Callable[[], BatchPolicy] | None = None,
    ) -> None:
        self.agent = Agent(
            HOLDER, accelerator, (M, N), settings or AgentSettings(), costs,
            waiting=waiting, new_policy=new_policy,
        )  # fmt: skip
        self.now_ns = S
        self.epoch_n = 0
        self.log: dict[RequestId, list[int]] = {}
        self.outcomes: dict[RequestId, Outcome] = {}
        self.actions: list[Action] = []
        self.capacity = EngineCapacity(
            kv_tokens=kv_tokens, block_tokens=16, seqs_max=seqs_max, context_tokens=4096
        )
        self.send(Tick())
        self.awake(M)

    def send(self, event: object) -> list[Action]:
        fresh = self.agent.receive(event, self.now_ns)  # type: ignore[arg-type]
        self.actions += fresh
        return fresh

    def at_pace(self, *, token_s: float, service_s: float) -> None:
        """Have both models finish generations at a pace from now on."""
        self.agent.state.stats.paces.update(dict.fromkeys((M, N), Pace(token_s, service_s)))

    def preempt(self, id: str) -> tuple[Submit, Request]:
        """Preempt a request of three tokens for an urgent one, which waits for its slot; return both."""
        slow = self.start(a_request(id, max_tokens=1000))
        self.at_pace(token_s=0.1, service_s=1)
        self.send(Progress(chunks=((slow.call.call_id, (1, 2, 3)),)))
        urgent = a_request("urgent", deadline_ms=2000, arrival_ns=self.now_ns)
        self.queue(group_of(urgent, name="u"))
        self.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
        self.store_appends()
        return slow, urgent

    def later(self, seconds: float) -> list[Action]:
        self.now_ns += round(seconds * S)
        return self.send(Tick())

    def awake(self, model: ModelId) -> list[Action]:
        return self.send(EngineChanged(model=model, state=EngineState.AWAKE, capacity=self.capacity))

    def take(self, kind: type[A]) -> list[A]:
        """Remove and return all collected actions of a kind."""
        found: list[A] = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def queue(self, *groups: Group) -> None:
        self.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=groups)))

    def answer(self, request: Request, answer: LeaseAnswer | None) -> list[Action]:
        return self.send(LeaseAnswered(id=request.id, answer=answer))

    def granted(self, output: TokenIds = (), preemptions: int = 0) -> Granted:
        self.epoch_n += 1
        lease = Lease(HOLDER, Epoch(1, self.epoch_n))
        return Granted(lease=lease, output=output, preemptions=preemptions)

    def start(self, request: Request, output: TokenIds = (), name: str = "g") -> Submit:
        """Pull and lease a request; return its submission."""
        self.queue(group_of(request, name=name))
        assert self.take(Pull)
        return self.deliver(request, output, name)

    def deliver(self, request: Request, output: TokenIds = (), name: str = "g") -> Submit:
        """Answer a pull with a request and lease it; return its submission."""
        self.send(
            Pulled(
                group=GroupId(name),
                limit=1,
                messages=(PulledMessage(delivery=delivery_of(request), request=request),),
            )
        )
        assert [t.metadata.id for t in self.take(AcquireLease)] == [request.id]
        self.log[request.id] = list(output)
        self.answer(request, self.granted(output))
        self.queue()
        (submit,) = self.take(Submit)
        return submit

    def store_appends(self) -> None:
        """Answer appends like the store until none is left."""
        self.later(0.05)
        while any(isinstance(action, Append) for action in self.actions):
            self.answer_append()
            self.later(0.05)

    def answer_append(self) -> None:
        """Answer the appends under way like the store."""
        for append in self.take(Append):
            results = tuple(self._append(entry) for entry in append.entries)
            self.send(Appended(entries=append.entries, results=results))

    def _append(self, entry: LogEntry) -> AppendResult:
        log = self.log[entry.id]
        assert entry.offset == len(log), "the protocol must append where the log ends"
        log.extend(entry.token_ids)
        if entry.outcome is not None:
            assert entry.id not in self.outcomes, "a request must end once"
            self.outcomes[entry.id] = entry.outcome
        return AppendResult.TAKEN
