"""Continuous batching with a paged KV cache, as in vLLM V1, in simulated time."""

from collections.abc import Iterable
from itertools import chain

from qlm.agents.batching.decision import BatchPolicy
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.decode_set import DecodeSet
from qlm.simulator.engine.generation import SCRIPTED_ID, OpenGeneration
from qlm.simulator.engine.host_cache import PROACTIVE, HostCache, KvOffloading
from qlm.simulator.engine.hosting.host import PolicyHost
from qlm.simulator.engine.kv_cache import KvCache
from qlm.simulator.engine.model import Chunk, Emission, EngineCounters, StepResult
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.scheduler import Scheduler
from qlm.simulator.engine.sequence import NOT_DECODING, Sequence
from qlm.simulator.engine.step_time import FRACTION_BITS, StepTimes

_Iteration = tuple[int, int]
"""The next iteration, as scheduled: its duration in ticks, whatever ends or is aborted before it starts, and
the sequences that decode in it; 0 if the iteration after it may have another batch in any case."""


class BatchingEngine:
    """Engine of one model on one accelerator.

    A driver has two ways to advance it. `step` computes one iteration, as in `EngineModel`. Or `plan`
    describes a run of iterations, `commit` lets some of them pass and returns their emissions, and `collect`
    returns the other tokens when they are needed. To add or abort a request within a run, first commit the
    iterations up to there (`Run.through`), and plan again; the result equals that of single iterations. A run
    without iterations only waits, and may be replaced by a new one.

    With asynchronous scheduling, iteration n + 1 is scheduled when iteration n starts, in the knowledge of
    then. Requests added meanwhile are considered for n + 2. What ends with n still has its slot and blocks
    in n + 1, and is computed once more unless a limit that was known ended it. What is aborted meanwhile is
    computed in n + 1 too. Here that is scheduled when n is committed, before anything else is done.
    """

    def __init__(
        self,
        profile: Profile,
        capacity: EngineCapacity,
        start: OpenGeneration,
        *,
        async_scheduling: bool | None = None,
        batched_tokens_max: int | None = None,
        watermark: float = 0.0,
        host_kv_bytes: int = 0,
        times: StepTimes | None = None,
        policy: BatchPolicy | None = None,
        offloading: KvOffloading = PROACTIVE,
    ) -> None:
        """Start empty and awake.

        Args:
            profile: Source of iteration times.
            capacity: Limits; the KV cache must hold a whole context, as in vLLM.
            start: Makes the tokens of a request.
            async_scheduling: Schedule each iteration while the one before it runs; None for the profile's
                setting.
            batched_tokens_max: Most tokens per iteration; None for the profile's.
            watermark: Share of blocks that an admission leaves free for growth of running requests (vLLM's
                `--watermark`, 0 by default).
            host_kv_bytes: Host memory for copies of KV blocks; 0 for none.
            times: Durations of iterations; None for the profile's.
            policy: Batch policy of its own; None for the engine's rule, first come, first served.
            offloading: Rules of copying KV blocks to host memory and back.
        """
        if capacity.kv_blocks < capacity.blocks(capacity.context_tokens):
            raise InvalidValueError(
                "kv_tokens", capacity.kv_tokens, f"room for {capacity.context_tokens} tokens"
            )
        if batched_tokens_max is None:
            batched_tokens_max = profile.batched_tokens_max
        if batched_tokens_max < capacity.seqs_max:
            raise InvalidValueError("batched_tokens_max", batched_tokens_max, f"at least {capacity.seqs_max}")
        if host_kv_bytes < 0:
            raise InvalidValueError("host_kv_bytes", host_kv_bytes, "not negative")
        self.capacity = capacity
        self.counters = EngineCounters()
        self._times, self._start = times or StepTimes(profile, batched_tokens_max), start
        host = HostCache.of(profile, capacity.block_tokens, host_kv_bytes, offloading)
        decodes = DecodeSet(capacity.block_tokens)
        self._cache = KvCache(capacity, host, decodes, self.counters)
        self._batch = Scheduler(
            capacity,
            self._cache,
            decodes,
            self.counters,
            batched_tokens_max=batched_tokens_max,
            watermark_blocks=int(watermark * capacity.kv_blocks),
        )
        self.on_preempted = self._batch.on_preempted
        self._host = policy and PolicyHost(policy, self._batch, self._cache, profile, batched_tokens_max)
        self._async = profile.async_scheduling if async_scheduling is None else async_scheduling
        self._all: dict[str, Sequence] = {}
        self._arrived: dict[Sequence, None] = {}
        self._next: _Iteration | None = None
        self._freed = False
        self._run: Run | None = None
        self._clock_ticks = 0
        self._asleep = False

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._batch.running)

    @property
    def waiting(self) -> int:
        """Requests not in the batch: new, preempted, or with KV in transit from host memory."""
        return len(self._all) - len(self._batch.running)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self._cache.blocks.used / self._cache.blocks.total

    def add(self, call: EngineCall, now_ns: int) -> None:
        """Append a request to the waiting list.

        Raises:
            InvalidValueError: The prompt leaves no room for a token, or the id is taken.
        """
        if not 0 < len(call.prompt_ids) < self.capacity.context_tokens:
            raise InvalidValueError(
                "prompt", f"{len(call.prompt_ids)} tokens", f"1 to {self.capacity.context_tokens - 1} tokens"
            )
        if call.call_id in self._all:
            raise InvalidValueError("call_id", call.call_id, "an id that is not in use")
        self._all[call.call_id] = sequence = Sequence(self._start(call))
        if self._host:
            self._host.add(sequence, now_ns)
        if self._async:
            self._arrived[sequence] = None
        else:
            self._batch.waiting.append(sequence)

    def abort(self, call_id: str) -> bool:
        """Remove a request and free its blocks, whose content stays in the prefix cache.

        Tokens not collected, and those of iterations not committed, are lost.

        Returns:
            Whether the request was known.
        """
        if (sequence := self._all.pop(call_id, None)) is None:
            return False
        if self._host:
            self._host.aborted(sequence)
        if sequence in self._arrived:
            del self._arrived[sequence]
        else:
            self._batch.remove(sequence)
            self._freed = True
        return True

    def sleep(self) -> None:
        """Preempt all requests; clear the KV cache with its prefixes and its copies in host memory."""
        self._batch.preempt_all()
        self._cache.forget_all()
        if self._host:
            self._host.asleep()
        self._run = self._next = None
        self._asleep = True

    def wake(self) -> None:
        """Resume service."""
        self._asleep = False

    def step(self, now_ns: int) -> StepResult | None:
        """Compute one iteration; None when asleep or without requests."""
        run = self.plan(now_ns, 1)
        if run is None:
            return None
        batch = [*self._batch.running, *self._batch.unreported]
        self._batch.unreported.clear()
        self._commit(run.iterations)
        return StepResult(run.end_ns(run.iterations) - now_ns, self._report(batch), idle=not run.iterations)

    def plan(self, now_ns: int, iterations_max: int) -> Run | None:
        """Schedule, and describe the following iterations with the same batch.

        Args:
            now_ns: Start of the first one: the end of the last committed one, or later.
            iterations_max: Most iterations; 1 or more.

        Returns:
            None when asleep or without requests.
        """
        if iterations_max < 1:
            raise InvalidValueError("iterations_max", iterations_max, "at least 1")
        self._run = None
        if not self._async:
            self._next = None
        if self._asleep or not (self._all or self._next):
            return None
        if now_ns != self._clock_ticks >> FRACTION_BITS:
            self._clock_ticks = now_ns << FRACTION_BITS
        if self._arrived:
            self._queue_arrived()
        if self._next is None:
            self._schedule(now_ns, False)
        self._run = self._describe(iterations_max, now_ns)
        return self._run

    def commit(self, iterations: int) -> tuple[Emission, ...]:
        """Let iterations of the last planned run pass.

        Returns:
            All unreported tokens of each request that ended or got a first token, also after a preemption.
        """
        return self._report(self._commit(iterations))

    def collect(self) -> list[Chunk]:
        """Return the unreported tokens of all requests that have not ended."""
        batch, iteration, chunks = self._batch, self._batch.decodes.iteration, []
        # The tokens of a scripted answer are equal but for its end, which is never reported here.
        scripted: dict[int, TokenIds] = {}
        for sequence in chain(batch.running, batch.unreported):
            generation, reported, end = sequence.generation, sequence.reported, sequence.end
            generated = (
                sequence.generated if end == NOT_DECODING else generation.output_tokens - end + iteration
            )
            if (new := generated - reported) > 0:
                sequence.reported = generated
                if generation.ids is not None:
                    token_ids: TokenIds = generation.token_ids(reported, generated)
                elif new in scripted:
                    token_ids = scripted[new]
                else:
                    token_ids = scripted[new] = (SCRIPTED_ID,) * new
                chunks.append((sequence.call_id, token_ids))
        batch.unreported.clear()
        return chunks

    def _queue_arrived(self) -> None:
        # Behind a request that finds no room, others change nothing.
        self._freed = self._freed or not self._batch.waiting
        self._batch.waiting.extend(self._arrived)
        self._arrived.clear()
        if self._host:
            self._host.queued()

    def _schedule(self, now_ns: int, early: bool) -> None:
        """Put the next iteration together, if there is something to compute; see `Scheduler.schedule`."""
        batch = self._batch
        self._cache.free_written(now_ns)
        if self._host and self._host.is_due(now_ns):
            self._host.decide(now_ns, max(now_ns, self._clock_ticks >> FRACTION_BITS))
        preempted = batch.schedule(now_ns, early)
        self._freed = False
        if batch.chunks:
            self._next = (self._times.mixed_ticks(batch.chunks, batch.decodes, batch.admitted), 0)
        elif decodes := batch.decodes.count:
            ticks = self._times.decode_ticks(decodes, batch.decodes.context_tokens)
            self._next = (ticks, 0 if preempted else decodes)
        else:
            self._next = None

    def _describe(self, iterations_max: int, now_ns: int) -> Run:
        """Return the run that starts with the next iteration; without one, a wait."""
        batch = self._batch
        if self._next is None:
            return Run(self._idle_until_ns(now_ns) << FRACTION_BITS, 0, 0, 0)
        ticks, decodes = self._next
        if not decodes or decodes != batch.decodes.count or (self._async and self._may_admit(now_ns)):
            return Run(self._clock_ticks, ticks, 0, 1)
        iterations = batch.unchanged(iterations_max)
        run = Run(self._clock_ticks, ticks, self._times.growth_ticks(decodes), iterations)
        if (ready_ns := batch.ready_ns()) is not None and ready_ns > now_ns:
            run = run._replace(iterations=run.through(ready_ns))
        return self._host.cut(run) if self._host else run

    def _idle_until_ns(self, now_ns: int) -> int:
        """Return the end of the first load, or the time of the policy's next decision."""
        ready_ns = self._batch.ready_ns()
        if not self._host:
            assert ready_ns is not None, "nothing runs, and nothing loads"
            return ready_ns
        waits = ready_ns is not None and ready_ns > now_ns
        return self._host.idle_until_ns(now_ns, ready_ns if waits else None)

    def _may_admit(self, now_ns: int) -> bool:
        """Return whether scheduling the iteration after the next one may find more than the last time."""
        batch = self._batch
        if self._host and self._host.is_due(now_ns):
            return True
        if len(batch.running) >= self.capacity.seqs_max:
            return False
        if (ready_ns := batch.ready_ns()) is not None and ready_ns <= now_ns:
            return True
        return self._freed and bool(batch.waiting)

    def _commit(self, iterations: int) -> list[Sequence]:
        run = self._run
        if run is None:
            raise InvalidValueError("iterations", iterations, "a run planned since the last commit or sleep")
        if not min(1, run.iterations) <= iterations <= run.iterations:
            raise InvalidValueError("iterations", iterations, f"1 to {run.iterations}, as many as planned")
        self._run = None
        self._clock_ticks = run.end_ticks(iterations)
        if not iterations:
            return []
        if self._host:
            self._host.pass_run(run, iterations, self._times.growth_ticks(self._batch.decodes.count))
        changed, ended = self._batch.advance(iterations, run)
        if self._host:
            self._host.started(self._clock_ticks)
        if self._async:
            begin_ticks = run.begin_ticks if iterations == 1 else run.end_ticks(iterations - 1)
            self._schedule_ahead(begin_ticks >> FRACTION_BITS, ended)
        else:
            self._next = None
        if ended:
            self._batch.retire(ended)
            for sequence in ended:
                del self._all[sequence.call_id]
                if self._host:
                    self._host.ended(sequence, self._clock_ticks >> FRACTION_BITS)
        return changed

    def _schedule_ahead(self, now_ns: int, ending: list[Sequence]) -> None:
        """Put the next iteration together in the knowledge of the start of the one that is committed."""
        for sequence in ending:
            if sequence.generation.limited:
                self._batch.decodes.leave(sequence)
        self._schedule(now_ns, True)
        if ending:
            self._freed = True

    def _report(self, sequences: Iterable[Sequence]) -> tuple[Emission, ...]:
        iteration, emissions = self._batch.decodes.iteration, []
        for sequence in sequences:
            generation, reported, end = sequence.generation, sequence.reported, sequence.end
            generated = (
                sequence.generated if end == NOT_DECODING else generation.output_tokens - end + iteration
            )
            if generated == reported:
                continue
            sequence.reported = generated
            token_ids, cached = generation.token_ids(reported, generated), sequence.cached or 0
            ends = generated == generation.output_tokens
            finish, stop_reason = (generation.finish, generation.stop_reason) if ends else (None, None)
            emissions.append(Emission(sequence.call_id, token_ids, finish, stop_reason, cached))
        return tuple(emissions)
