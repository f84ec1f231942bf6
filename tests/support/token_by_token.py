"""The engine model written the plain way: one iteration at a time, one sequence after the other.

With asynchronous scheduling, the next iteration is put together when the present one starts, as in vLLM: a
sequence then has computed what the present one computes, and a token is due whose value is not known yet.
"""

from collections import deque
from dataclasses import dataclass, field

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.generation import Generation, OpenGeneration
from qlm.simulator.engine.host_cache import HostCache
from qlm.simulator.engine.kv_blocks import KvBlocks
from qlm.simulator.engine.model import Chunk, Emission, EngineCounters
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.step_time import FRACTION_BITS, StepTimes


@dataclass(eq=False)
class Text:
    """A request; `computed` counts what the iteration that runs computes, and `due` its token to come."""

    text: Generation
    tokens_max: int
    computed: int = 0
    generated: int = 0
    due: int = 0
    admitted: bool = False
    reported: int = 0
    cached: int | None = None
    loading: int = 0
    ready_ns: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.text.prompt_tokens + self.generated + self.due

    @property
    def missing(self) -> int:
        """Tokens to compute; none if the token to come is the last that its limits allow."""
        if self.due and self.generated + self.due == self.tokens_max:
            return 0
        return self.tokens - self.computed


@dataclass
class Iteration:
    """The sequences of an iteration with their tokens to compute, and its duration, ticks."""

    batch: list[tuple[Text, int]] = field(default_factory=list)
    ticks: int = 0


class TokenByToken:
    """The reference for `BatchingEngine`; `plan` never describes more than one iteration."""

    def __init__(
        self,
        profile: Profile,
        capacity: EngineCapacity,
        start: OpenGeneration,
        *,
        async_scheduling: bool,
        batched_tokens_max: int,
        watermark: float,
        host_kv_bytes: int,
    ) -> None:
        self.capacity = capacity
        self.counters = EngineCounters()
        self.kv = KvBlocks(capacity.kv_blocks)
        self.host = HostCache(
            host_bytes=host_kv_bytes,
            block_bytes=profile.kv_bytes_per_token * capacity.block_tokens,
            bytes_per_s=profile.host_bandwidth_bytes_per_s,
        )
        self._times = StepTimes(profile, batched_tokens_max)
        self._start = start
        self._budget = batched_tokens_max
        self._spare = int(watermark * capacity.kv_blocks)
        self._all: dict[str, Text] = {}
        self._running: list[Text] = []
        self._loading: list[Text] = []
        self._waiting: deque[Text] = deque()
        self._async = async_scheduling
        self._present = Iteration()
        self._next = Iteration()
        self._run = Run(0, 0, 0, 0)
        self._asleep = False

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._loading)

    @property
    def kv_usage(self) -> float:
        return self.kv.used / self.kv.total

    def add(self, call: EngineCall, now_ns: int) -> None:
        limit = min(call.sampling.max_tokens, self.capacity.context_tokens - len(call.prompt_ids))
        self._all[call.call_id] = one = Text(self._start(call), max(1, limit))
        self._waiting.append(one)

    def abort(self, call_id: str) -> bool:
        one = self._all.pop(call_id, None)
        if one is None:
            return False
        for place in (self._running, self._loading, self._waiting):
            if one in place:
                place.remove(one)
        self.kv.release(one.blocks)
        return True

    def sleep(self) -> None:
        for one in reversed(self._loading):
            self._put_back(one)
        self._loading.clear()
        while self._running:
            self._preempt()
        self.kv.forget_all()
        self.host.clear()
        self._next = Iteration()
        self._asleep = True

    def wake(self) -> None:
        self._asleep = False

    def plan(self, now_ns: int, iterations_max: int) -> Run | None:
        if self._asleep or not (self._all or self._next.batch):
            return None
        ticks = self._run.end_ticks(self._run.iterations)
        begin = ticks if ticks >> FRACTION_BITS == now_ns else now_ns << FRACTION_BITS
        while not self._next.batch:
            self._next = self._schedule(now_ns)
            if not self._next.batch and self._loading and not self._admissible(now_ns):
                self._run = Run(self._loading[0].ready_ns << FRACTION_BITS, 0, 0, 0)
                return self._run
        self._run = Run(begin, self._next.ticks, 0, 1)
        self._begin(self._next)
        self._present, self._next = self._next, Iteration()
        if self._async:
            self._next = self._schedule(now_ns)
        return self._run

    def _begin(self, iteration: Iteration) -> None:
        for one, new in iteration.batch:
            if self._alive(one):
                full = one.computed // self.capacity.block_tokens
                one.computed += new
                self._seal(one, full)
                one.due = int(one.computed == one.tokens)

    def _alive(self, one: Text) -> bool:
        return self._all.get(one.text.call.call_id) is one

    def commit(self, iterations: int) -> tuple[Emission, ...]:
        reported = []
        for one, _new in self._present.batch if iterations else ():
            if not self._alive(one) or not one.due:
                continue
            one.due = 0
            one.generated += 1
            self.counters.generation_tokens += 1
            ended = one.generated == one.text.output_tokens
            if ended:
                del self._all[one.text.call.call_id]
                (self._running if one in self._running else self._waiting).remove(one)
                self.kv.release(one.blocks)
            if ended or one.generated == 1:
                reported.append(self._emission(one))
        return tuple(reported)

    def collect(self) -> list[Chunk]:
        reported = [self._emission(one) for one in self._all.values() if one.generated > one.reported]
        return [(emission.call_id, emission.token_ids) for emission in reported]

    def _emission(self, one: Text) -> Emission:
        ids = one.text.token_ids(one.reported, one.generated)
        one.reported = one.generated
        finish = one.text.finish if one.generated == one.text.output_tokens else None
        return Emission(one.text.call.call_id, ids, finish, None, one.cached or 0)

    def _schedule(self, now_ns: int) -> Iteration:
        before = self.counters.preemptions
        batch: list[tuple[Text, int]] = []
        budget, index = self._budget, 0
        while budget and index < len(self._running):
            one = self._running[index]
            new = min(one.missing, budget)
            missing = self.capacity.blocks(one.computed + new) - len(one.blocks) if new else 0
            while missing > self.kv.free and one in self._running:
                self._preempt()
            if one in self._running:
                index += 1
                if new:
                    one.blocks += self.kv.take(max(0, missing))
                    batch.append((one, new))
                    budget -= new
        while before == self.counters.preemptions and budget and len(self._running) < self.capacity.seqs_max:
            admitted = self._next_waiting(now_ns)
            if admitted is None:
                break
            self._running.append(admitted)
            batch.append((admitted, new := min(admitted.missing, budget)))
            budget -= new
        return Iteration(batch, self._duration(batch))

    def _duration(self, batch: list[tuple[Text, int]]) -> int:
        new_ones = [one for one, _new in batch if not one.admitted]
        for one in new_ones:
            one.admitted = True
        decoding = [one for one, _new in batch if one.generated + one.due and one.missing == 1]
        prompts = [(one, new) for one, new in batch if one not in decoding]
        return self._times.ticks(
            prefills=len(prompts),
            prefill_tokens=sum(new for _one, new in prompts),
            double_pairs=sum(new * (2 * one.computed + new) for one, new in prompts),
            decodes=len(decoding),
            context_tokens=sum(one.tokens for one in decoding),
            admitted=len(new_ones),
        )

    def _admissible(self, now_ns: int) -> bool:
        """Whether scheduling again would find something: preemption put it off."""
        if self._loading[0].ready_ns <= now_ns:
            return True
        return bool(self._waiting) and self._fits(self._waiting[0], now_ns, take=False)

    def _next_waiting(self, now_ns: int) -> Text | None:
        if self._loading and self._loading[0].ready_ns <= now_ns:
            one = self._loading.pop(0)
            full = one.computed // self.capacity.block_tokens
            one.computed += one.loading
            self._seal(one, full)
            one.loading = 0
            return one
        while self._waiting and self._fits(self._waiting[0], now_ns, take=True):
            one = self._waiting.popleft()
            if not one.loading:
                return one
            self._loading.append(one)
        return None

    def _fits(self, one: Text, now_ns: int, *, take: bool) -> bool:
        block_tokens = self.capacity.block_tokens
        findable = one.text.digests[: (one.tokens - 1) // block_tokens]
        found = findable[: self.kv.cached(findable)]
        missing = self.capacity.blocks(one.tokens) - len(found)
        spare = self._spare if self._running else 0
        if missing > self.kv.free - self.kv.free_cached(found) - spare:
            return False
        if not take:
            return True
        one.blocks = self.kv.share(found) + self.kv.take(missing)
        one.computed = len(found) * block_tokens
        rest = findable[len(found) :]
        loaded = rest[: self.host.cached(rest)]
        one.loading = len(loaded) * block_tokens
        if loaded:
            one.ready_ns = self.host.load(loaded, now_ns)
        self.counters.reloaded_tokens += one.loading
        if one.cached is None:
            one.cached = one.computed + one.loading
            self.counters.prompt_tokens += one.tokens
            self.counters.prefix_queries += one.tokens
            self.counters.prefix_hits += one.computed
        return True

    def _seal(self, one: Text, full: int) -> None:
        for index in range(full, one.computed // self.capacity.block_tokens):
            self.kv.seal(one.blocks[index], one.text.digests[index])
            if self.host.blocks_max:
                copied = self.host.store([one.text.digests[index]])
                self.counters.offloaded_tokens += copied * self.capacity.block_tokens

    def _preempt(self) -> None:
        self._put_back(self._running.pop())
        self.counters.preemptions += 1

    def _put_back(self, one: Text) -> None:
        self.kv.release(one.blocks)
        one.blocks, one.computed, one.loading = [], 0, 0
        self._waiting.appendleft(one)
