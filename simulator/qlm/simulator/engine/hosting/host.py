"""Host of a batch policy in the engine model: builds its views, and puts its decisions into effect."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import numpy as np

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.pace import PaceMeter, tokens_at_most, tokens_left
from qlm.agents.batching.view import Machine, View
from qlm.domain.ids import RequestId
from qlm.domain.sampling import Evictability
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.hosting.columns import blocks, host_tokens, ids_of, places, rows_of
from qlm.simulator.engine.hosting.segment import OpenSegment
from qlm.simulator.engine.hosting.table import TICKS_PER_S, RequestTable
from qlm.simulator.engine.kv_cache import KvCache
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.scheduler import Scheduler
from qlm.simulator.engine.sequence import NOT_DECODING, Sequence

AGAIN_MIN_NS: Final = 1_000_000
"""Shortest time between two decisions without an arrival or an end."""

IDLE_NS: Final = 1_000_000_000
"""Time after which a policy that lets nothing run is asked again, if it does not say when."""

_pinned, _position = attrgetter("pinned"), attrgetter("position")


class PolicyHost:
    """One engine's batch policy.

    Attributes:
        again_ns: When the policy wants to be asked again at the latest.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        batch: Scheduler,
        cache: KvCache,
        profile: Profile,
        batched_tokens_max: int,
    ) -> None:
        """Start without requests.

        Args:
            policy: A policy of its own.
            batch: The engine's requests.
            cache: The engine's KV cache.
            profile: Coefficients of the engine.
            batched_tokens_max: Most tokens per iteration.
        """
        self._policy = policy
        self._batch = batch
        self._cache = cache
        self._table = RequestTable()
        self._meter = PaceMeter()
        self._segment = OpenSegment(batch.decodes)
        batch.on_preempted.append(self._preempted)
        self._changed = False
        self.again_ns: int | None = None
        self._machine = Machine(
            iteration=profile.iteration,
            kv_blocks=cache.blocks.total,
            free_blocks=cache.blocks.total,
            block_tokens=batch.capacity.block_tokens,
            seqs_max=batch.capacity.seqs_max,
            batched_tokens_max=batched_tokens_max,
            token_bytes=profile.kv_bytes_per_token,
            host_blocks=cache.host.blocks_max,
            link_bytes_per_s=profile.host_bandwidth_bytes_per_s,
            load_free_s=0.0,
            write_free_s=0.0,
        )

    def add(self, sequence: Sequence, now_ns: int) -> None:
        """Note a new request."""
        sampling = sequence.generation.call.sampling
        sequence.pinned = sampling.evictability is Evictability.PINNED
        self._table.add(sequence, now_ns)
        self._meter.arrived(int(self._table.prompt[sequence.row]))
        self._changed = True

    def queued(self) -> None:
        """Note that new requests are in the next view; the latest decision may not have seen them."""
        self._changed = True

    def aborted(self, sequence: Sequence) -> None:
        """Note the abort of a request."""
        self._flush()
        self._cache.end(sequence)
        self._table.remove(sequence)
        self._changed = True

    def ended(self, sequence: Sequence, now_ns: int) -> None:
        """Note the end of a request."""
        self._flush()
        self._cache.end(sequence)
        table, row = self._table, sequence.row
        answer = int(table.readers.tokens[row])
        self._meter.ended(answer, table.seconds(now_ns) - float(table.arrival_s[row]))
        table.remove(sequence)
        self._changed = True

    def asleep(self) -> None:
        """Note that all were preempted."""
        self._flush()
        self._changed = True

    def pass_run(self, run: Run, iterations: int, growth_ticks: int) -> None:
        """Note iterations, before they change the batch."""
        if not self._batch.chunks:
            self._segment.follow(run, iterations, growth_ticks, self._flush)
            return
        self._segment.follow(run, iterations, 0, self._flush)
        self._flush()

    def started(self, at_ticks: int) -> None:
        """Note the tokens of the prompts that the last iteration completed."""
        rows = [each.row for each, _ in self._batch.chunks if each.end != NOT_DECODING]
        if rows:
            self._table.readers.deliver(np.array(rows, np.int64), self._table.ticks_s(at_ticks))

    def is_due(self, now_ns: int) -> bool:
        """Return whether the policy is to be asked now."""
        return self._changed or (self.again_ns is not None and self.again_ns <= now_ns)

    def cut(self, run: Run) -> Run:
        """Return a run up to the next decision."""
        if self.again_ns is None:
            return run
        return run._replace(iterations=run.through(self.again_ns))

    def idle_until_ns(self, now_ns: int, ready_ns: int | None) -> int:
        """Return when to ask again, or the end of the next load (`ready_ns`), while nothing runs."""
        if ready_ns is not None:
            return min(ready_ns, self.again_ns or ready_ns)
        if self.again_ns is None:
            self.again_ns = now_ns + IDLE_NS
        return self.again_ns

    def decide(self, now_ns: int, ends_ns: int) -> None:
        """Ask the policy, and put its decision into effect but for admissions.

        Args:
            now_ns: The present.
            ends_ns: The end of the iteration that runs, until which who is preempted computes.
        """
        self._flush()
        self._cache.host.write_until(now_ns)
        self._changed, self.again_ns = False, None
        batch = self._batch
        order = [*batch.running, *batch.loading, *batch.waiting, *batch.parked]
        if not order:
            return
        ids = ids_of(order)
        decision = self._policy.decide(self._view(ids, order, now_ns))
        if decision.again_s is not None:
            self.again_ns = max(self._table.nanoseconds(decision.again_s), now_ns + AGAIN_MIN_NS)
        self._apply(decision, ids, order, ends_ns)

    def _flush(self) -> None:
        """Deliver the tokens of the open segment."""
        run, table = self._segment.run, self._table
        if not run.iterations:
            return
        first_s, growth_s = table.ticks_s(run.end_ticks(1)), run.growth_ticks / TICKS_PER_S
        step_s = run.first_ticks / TICKS_PER_S + growth_s
        if len(self._segment.rows):
            table.readers.deliver_run(self._segment.rows, run.iterations, first_s, step_s, growth_s)
        lasted_ticks = run.end_ticks(run.iterations) - run.begin_ticks
        self._meter.iterated(run.iterations, lasted_ticks / TICKS_PER_S)
        self._segment.close()

    def _view(self, ids: tuple[RequestId, ...], order: list[Sequence], now_ns: int) -> View:
        table, pace, rows = self._table, self._meter.pace(), rows_of(order)
        inside = len(self._batch.running) + len(self._batch.loading)
        readers = table.readers
        prompt, generated = table.prompt[rows], readers.tokens[rows]
        limit = table.limit[rows]
        left_mean, left_sd = tokens_left(pace, generated, limit)
        return View(
            now_s=table.seconds(now_ns),
            ids=ids,
            place=places(self._batch, order),
            arrival_s=table.arrival_s[rows],
            prompt=prompt,
            generated=generated,
            blocks=blocks(order, inside),
            host_tokens=host_tokens(self._cache, order, inside, prompt + generated, table.copies),
            preemptions=table.preemptions[rows],
            rate=table.rate[rows],
            ttft_s=table.ttft_s[rows],
            read_end_s=readers.read_end_s(rows),
            late_s=readers.late_s[rows],
            late_sum_s=readers.late_sum_s[rows],
            deadline_s=table.deadline_s[rows],
            rank=table.rank[rows],
            pinned=table.pinned[rows],
            left_mean=left_mean,
            left_sd=left_sd,
            left_max=tokens_at_most(generated, limit),
            machine=self._machine._replace(
                free_blocks=self._cache.blocks.free,
                load_free_s=table.seconds(self._cache.host.load_free_ns),
                write_free_s=table.seconds(self._cache.host.write_free_ns),
            ),
            pace=pace,
        )

    def _apply(
        self, decision: Decision, ids: tuple[RequestId, ...], order: list[Sequence], ends_ns: int
    ) -> None:
        batch = self._batch
        by_id = dict(zip(ids, order, strict=True))
        batch.skips = decision.skips
        batch.recomputed = frozenset(by_id[id] for id in decision.recompute if id in by_id)
        own_order = tuple(decision.run) == ids and not any(map(_pinned, order))
        batch.ordered = not own_order
        if not own_order:
            self._rearrange([by_id[id] for id in decision.run if id in by_id], order, ends_ns)
        elif batch.parked:
            batch.waiting.extend(batch.parked)
            batch.parked.clear()
        self._hold(decision, by_id)

    def _rearrange(self, chosen: list[Sequence], order: list[Sequence], ends_ns: int) -> None:
        """Preempt who is not to run, and put the others into the order of the policy."""
        batch, inside = self._batch, [*self._batch.running, *self._batch.loading]
        for sequence in order:
            sequence.position = -1
        for position, sequence in enumerate(chosen):
            sequence.position = position
        stay = {each for each in inside if each.position >= 0 or each.pinned}
        for sequence in inside:
            if sequence not in stay:
                self._preempt(sequence, ends_ns)
        outside = [each for each in order if each not in stay]
        outside.sort(key=_position)
        batch.waiting.clear()
        batch.waiting.extend([each for each in outside if each.position >= 0])
        batch.parked = {each: None for each in outside if each.position < 0}

    def _preempted(self, sequence: Sequence) -> None:
        self._table.preemptions[sequence.row] += 1

    def _preempt(self, sequence: Sequence, ends_ns: int) -> None:
        if sequence in self._batch.running:
            self._meter.preempted()
        self._batch.preempt(sequence, ends_ns)

    def _hold(self, decision: Decision, by_id: Mapping[RequestId, Sequence]) -> None:
        batch = self._batch
        on_hold = {by_id[id] for id in decision.hold if id in by_id}
        for sequence in [each for each in batch.on_hold if each not in on_hold]:
            batch.release(sequence)
        for sequence in [each for each in batch.running if each in on_hold and each not in batch.on_hold]:
            batch.hold(sequence)
