"""Continuous batching with a paged KV cache, as vLLM V1 does it, in simulated time.

Scheduling follows vLLM 0.32 (`v1/core/sched/scheduler.py`): running requests first, in order of arrival;
when one finds no free block, the last running request is preempted and recomputed later; waiting requests
are admitted only in an iteration without preemption, only if the blocks of the whole prompt are free, and
computed in chunks that fill the iteration's token budget.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.rct_estimator.profile import Profile
from qlm.simulator.engine_model import Emission, EngineCounters, StepResult
from qlm.simulator.generation import Generation, OpenGeneration
from qlm.simulator.kv_blocks import KvBlocks
from qlm.simulator.step_time import NS_PER_MS, step_ms

BATCHED_TOKENS_MAX: Final = 2048
"""Tokens computed in one iteration at most; default `--max-num-batched-tokens` of vLLM's API server."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request inside the engine; `computed` of its tokens are in the KV cache."""

    text: Generation
    computed: int = 0
    cached: int | None = None
    blocks: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return self.text.tokens - self.computed

    @property
    def decoding(self) -> bool:
        return self.text.generated > 0 and self.missing == 1


class BatchingEngine:
    """The engine of one model on one accelerator; see `EngineModel`."""

    def __init__(
        self,
        profile: Profile,
        capacity: EngineCapacity,
        start: OpenGeneration,
        *,
        batched_tokens_max: int = BATCHED_TOKENS_MAX,
        watermark: float = 0.0,
    ) -> None:
        """Start empty and awake.

        Args:
            profile: Decides how long iterations take.
            capacity: Limits; the KV cache must hold a whole context, as vLLM demands.
            start: Makes the tokens of a request.
            batched_tokens_max: Tokens per iteration at most.
            watermark: Share of blocks that an admission leaves free for running requests to grow
                into (vLLM's `--watermark`, 0 by default).
        """
        if capacity.kv_blocks < capacity.blocks(capacity.context_tokens):
            raise InvalidValueError(
                "kv_tokens", capacity.kv_tokens, f"room for {capacity.context_tokens} tokens"
            )
        if batched_tokens_max < capacity.seqs_max:
            raise InvalidValueError("batched_tokens_max", batched_tokens_max, f"at least {capacity.seqs_max}")
        self.capacity = capacity
        self.counters = EngineCounters()
        self._profile = profile
        self._start = start
        self._batched_tokens_max = batched_tokens_max
        self._watermark_blocks = int(watermark * capacity.kv_blocks)
        self._kv = KvBlocks(capacity.kv_blocks)
        self._all: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._asleep = False

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests not yet in the batch, or preempted."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self._kv.used / self._kv.total

    def add(self, call: EngineCall, now_ns: int) -> None:
        """Take a request at the end of the waiting list.

        Raises:
            InvalidValueError: The prompt leaves no room for a token, or the id is taken.
        """
        if not 0 < len(call.prompt_ids) < self.capacity.context_tokens:
            raise InvalidValueError(
                "prompt", f"{len(call.prompt_ids)} tokens", f"1 to {self.capacity.context_tokens - 1} tokens"
            )
        if call.call_id in self._all:
            raise InvalidValueError("call_id", call.call_id, "an id that is not in use")
        self._all[call.call_id] = sequence = _Sequence(self._start(call))
        self._waiting.append(sequence)

    def abort(self, call_id: str) -> bool:
        """Forget a request and free its blocks; their content stays findable."""
        sequence = self._all.pop(call_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._kv.release(sequence.blocks)
        return True

    def sleep(self) -> None:
        """Preempt all, and drop the KV cache with its prefixes."""
        while self._running:
            self._preempt()
        self._kv.forget_all()
        self._asleep = True

    def wake(self) -> None:
        """Serve again."""
        self._asleep = False

    def step(self, now_ns: int) -> StepResult | None:
        """Compute one iteration; None when asleep or without requests."""
        if self._asleep or not self._all:
            return None
        batch = self._schedule()
        duration_ns = self._duration_ns(batch)
        emissions = [emission for sequence, new in batch if (emission := self._advance(sequence, new))]
        if any(emission.finish for emission in emissions):
            self._running = [s for s in self._running if s.text.call.call_id in self._all]
        return StepResult(duration_ns, tuple(emissions))

    def _schedule(self) -> list[tuple[_Sequence, int]]:
        """Choose what this iteration computes: sequences with a number of tokens each."""
        preemptions = self.counters.preemptions
        batch: list[tuple[_Sequence, int]] = []
        budget = self._batched_tokens_max
        while budget > 0 and len(batch) < len(self._running):
            sequence = self._running[len(batch)]
            new = min(sequence.missing, budget)
            if self._make_room(sequence, sequence.computed + new):
                batch.append((sequence, new))
                budget -= new
        if preemptions == self.counters.preemptions:
            self._admit(batch, budget)
        return batch

    def _make_room(self, sequence: _Sequence, tokens: int) -> bool:
        """Give a running sequence blocks for `tokens` tokens; False if it had to be preempted itself."""
        missing = self.capacity.blocks(tokens) - len(sequence.blocks)
        while missing > self._kv.free:
            if self._preempt() is sequence:
                return False
        sequence.blocks += self._kv.take(max(0, missing))
        return True

    def _preempt(self) -> _Sequence:
        """Put the last running sequence back to the front of the waiting list, to be recomputed."""
        victim = self._running.pop()
        self._kv.release(victim.blocks)
        victim.blocks, victim.computed = [], 0
        self._waiting.appendleft(victim)
        self.counters.preemptions += 1
        return victim

    def _admit(self, batch: list[tuple[_Sequence, int]], budget: int) -> None:
        while budget > 0 and self._waiting and len(self._running) < self.capacity.seqs_max:
            sequence = self._waiting[0]
            if not self._reserve(sequence, self._watermark_blocks if self._running else 0):
                break
            self._running.append(self._waiting.popleft())
            new = min(sequence.missing, budget)
            batch.append((sequence, new))
            budget -= new

    def _reserve(self, sequence: _Sequence, spare_blocks: int) -> bool:
        """Take the blocks of the whole text so far, cached ones first; False if they do not fit.

        At least the last token is computed anew, since only that yields the next one.
        """
        text = sequence.text
        findable: Sequence[int] = text.block_digests[: (text.tokens - 1) // self.capacity.block_tokens]
        found = findable[: self._kv.cached(findable)]
        missing = self.capacity.blocks(text.tokens) - len(found)
        if missing > self._kv.free - self._kv.free_cached(found) - spare_blocks:
            return False
        sequence.blocks = self._kv.share(found) + self._kv.take(missing)
        sequence.computed = len(found) * self.capacity.block_tokens
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.counters.prompt_tokens += text.tokens
            self.counters.prefix_queries += text.tokens
            self.counters.prefix_hits += sequence.computed
        return True

    def _duration_ns(self, batch: Sequence[tuple[_Sequence, int]]) -> int:
        prefills = [new for sequence, new in batch if not sequence.decoding]
        contexts = [sequence.text.tokens for sequence, _new in batch if sequence.decoding]
        ms = step_ms(
            self._profile,
            prefills=len(prefills),
            prefill_tokens=sum(prefills),
            decodes=len(contexts),
            decode_context_tokens=sum(contexts),
        )
        return max(1, round(ms * NS_PER_MS))

    def _advance(self, sequence: _Sequence, new: int) -> Emission | None:
        """Compute `new` tokens; if the text is complete then, append one and tell of it."""
        text, block_tokens = sequence.text, self.capacity.block_tokens
        full = sequence.computed // block_tokens
        sequence.computed += new
        for index in range(full, sequence.computed // block_tokens):
            self._kv.seal(sequence.blocks[index], text.block_digests[index])
        if sequence.missing:
            return None
        token_id, finish = text.next_token()
        self.counters.generation_tokens += 1
        call_id = text.call.call_id
        if finish is not None:
            del self._all[call_id]
            self._kv.release(sequence.blocks)
        return Emission(call_id, (token_id,), finish, text.stop_reason, sequence.cached or 0)
