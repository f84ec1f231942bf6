"""Time of the agent's decision core per event: `python -m benchmarks.agent_protocol`.

One agent with a full batch of 16, 64 or 256 requests is driven directly: store, broker and engine answer at
once, and only the time inside `receive` counts. Each request passes through all steps: pull, lease,
submission, tokens one by one, end, log and acknowledgement. Half of them are dropped if they are late, and a
queue of more urgent work is always longer than the batch.
"""

import time
from collections import deque
from collections.abc import Iterable

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import (
    Appended,
    EngineChanged,
    Event,
    GenerationEnded,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import AcquireLease, Action, Append, Pull, PulledMessage, SetTimer, Submit
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, QueueName, RequestId, SessionId
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.lease_answer import Granted
from qlm.domain.output import AppendResult
from qlm.domain.ports.broker import Delivery
from qlm.domain.request import Answer, AnswerKind, Request
from qlm.domain.sampling import Sampling
from qlm.domain.slo import DeadlineSlo, OnMiss
from qlm.domain.virtual_queue import VirtualQueue

BATCHES = (16, 64, 256)
TOKENS = 24
STEP_NS = 20_000_000
MODEL = ModelId("m")
CLASS = RequestClass(MODEL, "deadline-60s", target_ms=60_000.0)
SLO = DeadlineSlo(deadline_ms=60_000.0)
HOLDER = Holder(InstanceId("i"), SessionId("s"))
ANSWER = Answer(kind=AnswerKind.COMPLETION)


def main() -> int:
    """Print the table."""
    print(
        f"us inside the agent's core, {TOKENS} tokens per request, all steps; single: one event per token and"
    )
    print("request, as HTTP streams bring them; joint: one event per step of the engine")
    print(" running  chunks  requests  us/request  us/token  us other/request")
    for batch in BATCHES:
        for joint in (False, True):
            bench = Bench(batch, joint=joint)
            bench.run(steps=3 * TOKENS)
            ended = bench.measured(steps=max(2, 2048 // batch) * TOKENS)
            total_us, token_us = bench.total_ns / 1000, bench.token_ns / 1000
            kind = "joint" if joint else "single"
            print(
                f"{batch:>8}{kind:>8}{ended:>10}{total_us / ended:>12.1f}"
                f"{token_us / bench.tokens:>10.2f}{(total_us - token_us) / ended:>18.1f}",
                flush=True,
            )
    return 0


class Bench:
    """Agent with an endless queue, whose store, broker and engine answer at once."""

    def __init__(self, batch: int, *, joint: bool) -> None:
        self.joint = joint
        self.agent = Agent(HOLDER, "A10", (MODEL,), AgentSettings())
        self.now_ns = 1_000_000_000
        self.made = 0
        self.ended = 0
        self.running: dict[str, int] = {}
        self.pending: deque[Action] = deque()
        self.total_ns = self.token_ns = self.tokens = 0
        capacity = EngineCapacity(kv_tokens=batch * 512, block_tokens=16, seqs_max=batch, context_tokens=4096)
        self.send(Tick())
        self.send(EngineChanged(model=MODEL, state=EngineState.AWAKE, capacity=capacity))

    def measured(self, steps: int) -> int:
        """Run further steps; return the number of requests that ended."""
        self.total_ns = self.token_ns = self.tokens = 0
        before = self.ended
        self.run(steps)
        return self.ended - before

    def run(self, steps: int) -> None:
        """Let the engine take steps; each ended request is replaced."""
        for step in range(steps):
            self.now_ns += STEP_NS
            if step % 25 == 0:
                self.read_queue()
                self.send(Tick())
            self.generate()
            through = [call for call, tokens in self.running.items() if tokens >= TOKENS]
            for call in through:
                del self.running[call]
                self.send(GenerationEnded(call_id=call, finish="length"))
            self.answer()

    def generate(self) -> None:
        chunks = [(call, (7,)) for call in self.running]
        for call in self.running:
            self.running[call] += 1
        events = (
            [Progress(chunks=tuple(chunks))] if self.joint else [Progress(chunks=(one,)) for one in chunks]
        )
        before_ns = self.total_ns
        for event in events:
            self.send(event)
        self.token_ns += self.total_ns - before_ns
        self.tokens += len(chunks)

    def read_queue(self) -> None:
        groups = [
            Group(id=GroupId(f"g{n}"), cls=CLASS, seq=n, count=10_000, head_arrival_ns=self.now_ns)
            for n in range(16)
        ]
        self.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=tuple(groups))))

    def answer(self) -> None:
        """Answer the agent's actions until there are none."""
        while self.pending:
            match self.pending.popleft():
                case Pull(group=group, limit=limit):
                    messages = tuple(self.message() for _ in range(limit))
                    self.send(Pulled(group=group, limit=limit, messages=messages))
                case AcquireLease(metadata=metadata):
                    granted = Granted(lease=Lease(HOLDER, Epoch(1, 1)), output=())
                    self.send(LeaseAnswered(id=metadata.id, answer=granted))
                case Submit(call=call):
                    # The first batch has answers of all lengths so far, as in the steady state.
                    self.running[call.call_id] = 0 if self.ended else len(self.running) % TOKENS
                case Append(entries=entries):
                    self.ended += sum(entry.outcome is not None for entry in entries)
                    self.send(Appended(entries=entries, results=(AppendResult.TAKEN,) * len(entries)))
                case _:
                    pass

    def message(self) -> PulledMessage:
        self.made += 1
        request = Request(
            id=RequestId(f"r{self.made}"),
            cls=CLASS,
            tenant="t",
            slo=SLO,
            on_miss=OnMiss.DROP if self.made % 2 else OnMiss.SERVE,
            arrival_ns=self.now_ns,
            prompt_tokens=128,
            prompt_ids=(1,) * 128,
            sampling=Sampling(max_tokens=256),
            answer=ANSWER,
        )
        delivery = Delivery(QueueName("q"), self.made, b"", False)
        return PulledMessage(delivery=delivery, request=request)

    def send(self, event: Event) -> None:
        started_ns = time.perf_counter_ns()
        actions = self.agent.receive(event, self.now_ns)
        self.total_ns += time.perf_counter_ns() - started_ns
        self.keep(actions)

    def keep(self, actions: Iterable[Action]) -> None:
        self.pending.extend(action for action in actions if not isinstance(action, SetTimer))


if __name__ == "__main__":
    raise SystemExit(main())
