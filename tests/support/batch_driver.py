"""An engine that follows a batch policy token by token: small, slow, and checked at each step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.view import NO_READER, Machine, Pace, Place, View
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from support.batch_views import Row, view

_SMOOTHING: Final = 0.1


@dataclass
class DrivenRequest:
    """A request, what became of it, and where it is; times are seconds from the start."""

    id: str
    arrival_s: float
    prompt: int
    answer: int
    reader: Reader | None = None
    deadline_s: float = inf
    rank: int = 0
    timeline: Timeline = field(init=False)
    place: Place = Place.OUTSIDE
    generated: int = 0
    computed: int = 0
    host_tokens: int = 0
    loaded_s: float = 0.0
    preemptions: int = 0
    times_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.reader or Reader(inf, 1.0))

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated

    @property
    def end_s(self) -> float:
        return self.times_s[-1]

    @property
    def ended(self) -> bool:
        return self.generated == self.answer

    def blocks(self, machine: Machine, growth: int = 0) -> int:
        return -(-(self.tokens + growth) // machine.block_tokens)

    def row(self, machine: Machine) -> Row:
        read_s = self.arrival_s + self.timeline.read_end_s
        return Row(
            self.id, self.place, self.arrival_s, self.prompt, self.generated,
            blocks=self.blocks(machine, 1) if self.place is not Place.OUTSIDE else 0,
            host_tokens=self.host_tokens, preemptions=self.preemptions,
            rate=self.reader.tokens_per_s if self.reader else NO_READER,
            ttft_s=self.reader.ttft_s if self.reader else inf, read_end_s=read_s,
            late_s=self.timeline.late_s if self.reader else 0.0,
            late_sum_s=self.timeline.late_sum_s if self.reader else 0.0,
            deadline_s=self.deadline_s, rank=self.rank,
        )  # fmt: skip


class BatchDriver:
    """Requests on one instance under a policy.

    Iterations last as the machine's coefficients say. Prompts, and what preemption lost, are computed in
    chunks beside the decodes; with host memory, KV is written through and loaded over one link.
    """

    def __init__(self, policy: BatchPolicy, machine: Machine, requests: Sequence[DrivenRequest]) -> None:
        self.policy, self.machine, self.requests = policy, machine, requests
        self._coming = sorted(requests, key=lambda each: each.arrival_s)[::-1]
        self._present: list[DrivenRequest] = []
        answers = [each.answer for each in requests]
        self.pace = Pace(
            step_s=0.0,
            prompt_mean=sum(each.prompt for each in requests) / len(requests),
            answer_mean=sum(answers) / len(answers),
            answer_square_mean=sum(each**2 for each in answers) / len(answers),
            life_s=0.0, preemptions=0, requests=len(requests),
        )  # fmt: skip
        self.now_s, self.iterations, self.link_free_s = 0.0, 0, 0.0
        self.decision = Decision(run=())
        self._asked = False

    @property
    def preemptions(self) -> int:
        return sum(each.preemptions for each in self.requests)

    def run(self, iterations_max: int = 100_000) -> "BatchDriver":
        """Run until all have ended."""
        while self._coming or self._present:
            assert self.iterations < iterations_max, "requests starve"
            self._decide()
            self._iterate()
        return self

    def _inside(self) -> list[DrivenRequest]:
        return [each for each in self._present if each.place is not Place.OUTSIDE]

    def _used(self) -> int:
        return sum(each.blocks(self.machine, 1) for each in self._inside())

    def view(self) -> View:
        machine = self.machine._replace(load_free_s=self.link_free_s)
        return view(
            *(each.row(machine) for each in self._present), now_s=self.now_s, machine=machine, pace=self.pace
        )

    def _decide(self) -> None:
        while self._coming and self._coming[-1].arrival_s <= self.now_s:
            self._present.append(self._coming.pop())
            self._asked = False
        present, again_s = self._present, self.decision.again_s
        if self._asked and (again_s is None or self.now_s < again_s - 1e-9):
            return
        self._asked = True
        self.decision = self.policy.decide(self.view())
        by_id = {each.id: each for each in present}
        wanted, chosen = [by_id[request] for request in self.decision.run], set(self.decision.run)
        for each in present:
            if each.place is not Place.OUTSIDE and each.id not in chosen:
                self._preempt(each)
        for each in wanted:
            if each.place is Place.OUTSIDE and not self._admit(each) and not self.decision.skips:
                break

    def _admit(self, request: DrivenRequest) -> bool:
        takes = request.blocks(self.machine, 1)
        if len(self._inside()) >= self.machine.seqs_max or self._used() + takes > self.machine.kv_blocks:
            return False
        request.place, request.computed = Place.INSIDE, 0
        if request.host_tokens and request.id not in self.decision.recompute:
            bytes_ = request.host_tokens * self.machine.token_bytes
            self.link_free_s = max(self.link_free_s, self.now_s) + bytes_ / self.machine.link_bytes_per_s
            request.place, request.loaded_s = Place.LOADING, self.link_free_s
            request.computed = request.host_tokens
        return True

    def _preempt(self, request: DrivenRequest) -> None:
        if self.machine.host_blocks:
            request.host_tokens = request.computed
        request.place, request.computed = Place.OUTSIDE, 0
        request.preemptions += 1
        self.pace = self.pace._replace(preemptions=self.pace.preemptions + 1)

    def _iterate(self) -> None:
        for each in self._inside():
            if each.place is Place.LOADING and each.loaded_s <= self.now_s:
                each.place = Place.INSIDE
        running = [each for each in self._inside() if each.place is Place.INSIDE]
        budget = self.machine.batched_tokens_max
        chunks = []
        for each in running:
            new = min(budget, each.tokens - each.computed)
            budget -= new
            chunks.append(new)
        mixed = any(new > 1 for new in chunks)
        step_s = self.machine.iteration.ms(
            tokens=max(1, sum(chunks)), context_tokens=sum(each.computed for each in running),
            sequences=len(running), mixed=mixed,
        ) / 1000  # fmt: skip
        self.now_s, self.iterations = self.now_s + step_s, self.iterations + 1
        if running:
            smoothed = self.pace.step_s or step_s
            self.pace = self.pace._replace(step_s=smoothed + _SMOOTHING * (step_s - smoothed))
        for each, new in zip(running, chunks, strict=True):
            each.computed += new
            if each.computed == each.tokens:
                self._deliver(each)
        self._free_for_growth()
        assert self._used() <= self.machine.kv_blocks
        assert len(self._inside()) <= self.machine.seqs_max

    def _deliver(self, request: DrivenRequest) -> None:
        request.generated += 1
        request.times_s.append(self.now_s)
        request.timeline.deliver(1, self.now_s - request.arrival_s)
        if request.ended:
            request.place, self._asked = Place.OUTSIDE, False
            self._present.remove(request)

    def _free_for_growth(self) -> None:
        place: dict[str, int] = {request: at for at, request in enumerate(self.decision.run)}
        while self._used() > self.machine.kv_blocks:
            self._preempt(max(self._inside(), key=lambda each: place[each.id]))
            self._asked = False
