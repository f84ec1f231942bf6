"""Scheduling of requests in an engine, as in vLLM V1, and its effect on the KV cache.

The rules are those of vLLM 0.32 (`v1/core/sched/scheduler.py`). Running requests come first, in order of
arrival. When one finds no free block, the last running request is preempted and recomputed later. Waiting
requests are admitted only in an iteration without preemption, and only if the blocks of the whole prompt are
free. Prompts are computed in chunks that fill the iteration's token budget.

At most one running request has an incomplete prompt, and it is the last: its chunk used up the budget, so
that no request was admitted behind it. All others get one token in every iteration; `DecodeSet` advances them
together.

A batch policy may impose another order (`hosting`): it preempts, holds and parks. Requests are then given up
in its order, and several may have incomplete prompts.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator

from qlm.domain.fleet import EngineCapacity
from qlm.simulator.engine.decode_set import DecodeSet
from qlm.simulator.engine.kv_cache import KvCache
from qlm.simulator.engine.model import EngineCounters
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.sequence import NOT_DECODING, Sequence


class Scheduler:
    """Requests of an engine: waiting, in transit from host memory, or in the batch.

    Attributes:
        running: The batch, in order.
        decodes: Sequences of the batch that get a token in each iteration.
        chunks: Sequences with the number of prompt tokens that the next iteration computes of each.
        admitted: Sequences among them that are in the batch for the first time.
        loading: Sequences whose KV is loading, in order of arrival.
        waiting: The others, in order of admission.
        parked: Those that are not to be admitted.
        on_hold: Sequences of the batch that keep their blocks and compute nothing.
        recomputed: Sequences whose copies in host memory are not used.
        skips: A sequence that does not fit lets later ones in.
        ordered: Sequences have a `position`, by which they are given up.
        on_preempted: They receive each sequence that was preempted.
        unreported: Preempted sequences with unreported tokens.
    """

    def __init__(
        self,
        capacity: EngineCapacity,
        cache: KvCache,
        decodes: DecodeSet,
        counters: EngineCounters,
        *,
        batched_tokens_max: int,
        watermark_blocks: int,
    ) -> None:
        """Start empty.

        Args:
            capacity: Limits.
            cache: Allocates blocks.
            decodes: Empty set, shared with the cache.
            counters: Counters to increment.
            batched_tokens_max: Most tokens per iteration.
            watermark_blocks: Blocks that an admission leaves free, unless nothing runs.
        """
        self.capacity = capacity
        self.running: dict[Sequence, None] = {}
        self.decodes = decodes
        self.chunks: list[tuple[Sequence, int]] = []
        self.admitted = 0
        self.loading: deque[Sequence] = deque()
        self.waiting: deque[Sequence] = deque()
        self.parked: dict[Sequence, None] = {}
        self.on_hold: dict[Sequence, None] = {}
        self.recomputed: Collection[Sequence] = ()
        self.skips = self.ordered = False
        self.on_preempted: list[Callable[[Sequence], None]] = []
        self.unreported: dict[Sequence, None] = {}
        self._cache = cache
        self._blocks = cache.blocks
        self._counters = counters
        self._batched_tokens_max = batched_tokens_max
        self._watermark_blocks = watermark_blocks
        self._prefilling: dict[Sequence, None] = {}
        self._admissions = 0
        self._grown_at = -1

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and free its blocks; their content stays findable."""
        if sequence in self.running:
            del self.running[sequence]
            self._leave_batch(sequence)
        elif sequence in self.loading:
            self.loading.remove(sequence)
        else:
            self._forget_waiting(sequence)
        self.unreported.pop(sequence, None)
        self._cache.release(sequence)

    def preempt_all(self) -> None:
        """Return all to the waiting list, in order."""
        while self.loading:
            self._put_back(self.loading.pop())
        while self.running:
            self._preempt()

    def preempt(self, sequence: Sequence, now_ns: int) -> None:
        """Preempt a sequence that runs or loads, whatever its place in the batch."""
        if sequence in self.running:
            self._preempt(sequence, now_ns)
        else:
            self.loading.remove(sequence)
            self._put_back(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Let a running sequence compute nothing until `release`; it keeps its blocks."""
        self._leave_batch(sequence)
        self.on_hold[sequence] = None

    def release(self, sequence: Sequence) -> None:
        """End the hold of a sequence."""
        del self.on_hold[sequence]
        if sequence.generated and sequence.missing == 1:
            # The end of a sequence that leaves and joins within an iteration is in the set twice.
            self._admissions += 1
            sequence.order = self._admissions
            self.decodes.join(sequence)
            # It may have its next block: look at each that needs one.
            self._grown_at = self.decodes.iteration
        elif not sequence.ended:
            self._prefilling[sequence] = None

    def schedule(self, now_ns: int, early: bool) -> bool:
        """Choose the batch of the next iteration and allocate its blocks.

        Args:
            now_ns: KV that has loaded until now can be used.
            early: The present iteration has not ended yet, so that what ends with it still has a slot.

        Returns:
            Whether sequences were preempted, so that an iteration later others may be admitted.
        """
        preempted = self._grow()
        self.admitted = 0
        budget = self._continue_prompts(self._batched_tokens_max - self.decodes.count)
        # An iteration without requests after preemption takes no time: the next one starts now.
        if not preempted or not (self.running or early):
            self._admit(budget, now_ns)
        return preempted

    def ready_ns(self) -> int | None:
        """Return when the next KV has loaded, or the next blocks are free; None if neither is to come."""
        return self._cache.ready_ns(self.loading[0].ready_ns if self.loading else None)

    def unchanged(self, iterations_max: int) -> int:
        """Count the iterations, up to `iterations_max`, for which a batch without prompts does not change.

        It changes when a sequence ends or finds no free block. A waiting sequence that found too few free
        blocks finds no more meanwhile, unless one of the batch computes the same text.
        """
        decodes, free, waiting = self.decodes, self._blocks.free, self.waiting
        if waiting and decodes.has_family(waiting[0].generation.family):
            return 1
        if self.skips and any(decodes.has_family(each.generation.family) for each in waiting):
            return 1
        iterations = min(iterations_max, decodes.iterations_to_end())
        if free >= decodes.count * (iterations // self.capacity.block_tokens + 1):
            return iterations
        return decodes.iterations_within(free, iterations)

    def advance(self, iterations: int, run: Run) -> tuple[list[Sequence], list[Sequence]]:
        """Let iterations of the batch pass; at most as many as it is `unchanged`.

        Returns:
            The sequences that ended, with those that got a first token after them; and the former alone,
            which stay in the batch until `retire`.
        """
        self._decode(iterations, run)
        started = self._compute_chunks(run.end_ns(iterations)) if self.chunks else None
        ended = self.decodes.ended()
        if not started:
            return ended, ended
        last = self.decodes.iteration
        return ended + [s for s in started if s.end > last], ended

    def retire(self, ended: Collection[Sequence]) -> None:
        """Take ended sequences out of the batch, or the waiting list if they were preempted meanwhile."""
        running = self.running
        for sequence in ended:
            if sequence.end != NOT_DECODING:
                self.decodes.leave(sequence)
            if sequence in running:
                del running[sequence]
                self.on_hold.pop(sequence, None)
                self._cache.release(sequence)
            else:
                self._forget_waiting(sequence)
                self.unreported.pop(sequence, None)

    def _forget_waiting(self, sequence: Sequence) -> None:
        if sequence in self.parked:
            del self.parked[sequence]
        else:
            self.waiting.remove(sequence)

    def _grow(self) -> bool:
        """Allocate the decoding sequences' blocks for the next iteration; True if some were preempted."""
        decodes, iteration = self.decodes, self.decodes.iteration
        needing = decodes.at_boundary(iteration)
        if self._grown_at == iteration:
            needing = [s for s in needing if self._is_full(s, iteration)]
        self._grown_at = iteration
        if len(needing) <= self._blocks.free:
            if needing:
                self._cache.grow(needing)
            return False
        for sequence in tuple(needing):
            while not self._blocks.free and sequence.end != NOT_DECODING:
                self._preempt()
            if sequence.end == NOT_DECODING:
                continue  # it was preempted itself
            self._cache.grow((sequence,))
        return True

    def _is_full(self, sequence: Sequence, iteration: int) -> bool:
        """Return whether a decoding sequence has no slot for the token after this iteration."""
        return len(sequence.blocks) * self.capacity.block_tokens < (
            sequence.generation.tokens - sequence.end + iteration
        )

    def _preempt(self, victim: Sequence | None = None, now_ns: int | None = None) -> None:
        """Return a running sequence, the last if none is given, to the front of the waiting list.

        With a time, what is not in host memory yet is written first; without, its blocks are free at once.
        """
        if victim is None:
            victim = self._last()
        del self.running[victim]
        self._leave_batch(victim)
        if victim.generated > victim.reported:
            self.unreported[victim] = None
        self._put_back(victim, now_ns)
        self._counters.preemptions += 1
        for receive in self.on_preempted:
            receive(victim)

    def _last(self) -> Sequence:
        """Return the running sequence that is given up first; a pinned one only if all are."""
        if not self.ordered:
            return next(reversed(self.running))
        return max(self.running, key=lambda each: (not each.pinned, each.position, each.order))

    def _leave_batch(self, sequence: Sequence) -> None:
        if sequence.end != NOT_DECODING:
            self.decodes.leave(sequence)
        else:
            self._prefilling.pop(sequence, None)
            self.on_hold.pop(sequence, None)

    def _put_back(self, sequence: Sequence, now_ns: int | None = None) -> None:
        self._cache.release(sequence) if now_ns is None else self._cache.evict(sequence, now_ns)
        sequence.lose_blocks()
        at = 0
        if self.ordered:
            at = sum(each.position < sequence.position for each in self.waiting)
        self.waiting.insert(at, sequence)

    def _continue_prompts(self, budget: int) -> int:
        """Spend the budget on the prompts of running sequences; return the rest."""
        self.chunks = []
        for sequence in self._prefilling:
            if new := min(sequence.missing, budget):
                self.chunks.append((sequence, new))
                budget -= new
        return budget

    def _admit(self, budget: int, now_ns: int) -> None:
        if len(self.running) >= self.capacity.seqs_max or not (self.waiting or self.loading):
            return
        candidates = self._candidates(now_ns)
        while budget > 0 and len(self.running) < self.capacity.seqs_max:
            sequence = next(candidates, None)
            if sequence is None:
                return
            self._admissions += 1
            self.admitted += not sequence.order
            sequence.order = self._admissions
            self.running[sequence] = self._prefilling[sequence] = None
            new = min(sequence.missing, budget)
            self.chunks.append((sequence, new))
            budget -= new

    def _candidates(self, now_ns: int) -> Iterator[Sequence]:
        """Take the sequences that can run now out of their lists: first those whose KV has loaded."""
        skipped = 0
        while True:
            if self.loading and self.loading[0].ready_ns <= now_ns:
                loaded = self.loading.popleft()
                self._cache.fill(loaded, loaded.loading, now_ns)
                loaded.loading = 0
                yield loaded
                continue
            if skipped >= len(self.waiting):
                return
            sequence = self.waiting[skipped]
            spare_blocks = self._watermark_blocks if self.running else 0
            loads = sequence not in self.recomputed
            if not self._cache.reserve(sequence, spare_blocks, now_ns, loads=loads):
                if not self.skips:
                    return
                skipped += 1
                continue
            del self.waiting[skipped]
            if sequence.loading:
                self.loading.append(sequence)
            else:
                yield sequence

    def _decode(self, iterations: int, run: Run) -> None:
        """Advance the decoding sequences: fill blocks, and allocate new ones while iterations follow."""
        decodes, at_boundary = self.decodes, self.decodes.at_boundary
        first, last = decodes.iteration, decodes.iteration + iterations
        for at in range(first + 1, last + 1):
            if full := at_boundary(at):
                for sequence in full:
                    if not sequence.private:
                        self._cache.fill_last(sequence, run.end_ns(at - first))
                if at < last:
                    self._cache.grow(full)
        self._counters.generation_tokens += decodes.count * iterations
        decodes.iteration = last

    def _compute_chunks(self, now_ns: int) -> list[Sequence]:
        """Compute the chunks of what still runs; return the sequences that this gives a first token.

        That is their first, or the first one after a preemption.
        """
        started = []
        for sequence, new in self.chunks:
            if sequence not in self.running:
                continue
            self._cache.fill(sequence, new, now_ns)
            if sequence.missing:
                continue
            del self._prefilling[sequence]
            sequence.generated += 1
            self._counters.generation_tokens += 1
            self.decodes.join(sequence)
            started.append(sequence)
        return started
