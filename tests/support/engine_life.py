"""A driver that lets an engine model live a random life, and checks that nothing is created or lost."""

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qlm.agents.batching.decision import BatchPolicy
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import CallObjective, EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import Script, hashed_generation, scripted_generation
from qlm.simulator.engine.host_cache import KvOffloading
from qlm.simulator.engine.model import Emission
from support.engine_worlds import offloadings

PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A10")
CONTEXT = 60


class EngineLife(RuleBasedStateMachine):
    """A driver that does anything it may do, in any order."""

    def policy(self, seed: int) -> BatchPolicy | None:
        """The batch policy; here none."""
        return None

    @initialize(
        hashed=st.booleans(),
        shared=st.booleans(),
        block_tokens=st.sampled_from([1, 4, 7]),
        spare_blocks=st.integers(0, 40),
        seqs_max=st.integers(1, 5),
        host_blocks=st.sampled_from([0, 2, 500]),
        async_scheduling=st.booleans(),
        offloading=offloadings(),
        seed=st.integers(0, 2**16),
    )
    def start(
        self,
        *,
        hashed: bool,
        shared: bool,
        block_tokens: int,
        spare_blocks: int,
        seqs_max: int,
        host_blocks: int,
        async_scheduling: bool,
        offloading: KvOffloading,
        seed: int,
    ) -> None:
        blocks = -(-CONTEXT // block_tokens) + spare_blocks
        self.capacity = EngineCapacity(
            kv_tokens=blocks * block_tokens,
            block_tokens=block_tokens,
            seqs_max=seqs_max,
            context_tokens=CONTEXT,
        )
        profile = replace(PROFILE, host_bandwidth_bytes_per_s=1e9)
        self.answer = {} if hashed else dict[str, int]()
        self.family = dict[str, int]()

        def script(call: EngineCall) -> Script:
            family = self.family[call.call_id]
            tokens = len(call.prompt_ids) if shared else 0
            return Script(
                output_tokens=self.answer[call.call_id], base=family << 20,
                prefix_ids=(family % 2,) if shared else (), prefix_tokens=tokens,
            )  # fmt: skip

        start = (
            hashed_generation(block_tokens=block_tokens, context_tokens=CONTEXT, mean_output_tokens=15)
            if hashed
            else scripted_generation(script, block_tokens=block_tokens, context_tokens=CONTEXT)
        )
        self.engine = BatchingEngine(
            profile, self.capacity, start, async_scheduling=async_scheduling, batched_tokens_max=16,
            host_kv_bytes=host_blocks * profile.kv_bytes_per_token * block_tokens, policy=self.policy(seed),
            offloading=offloading,
        )  # fmt: skip
        self.host_blocks = host_blocks
        self.now_ns = self.calls = self.ended = self.aborted = 0
        self.hashed = hashed
        self.tokens = Counter[str]()
        self.wanted = dict[str, int]()
        self.alive = set[str]()

    def objective(self) -> CallObjective | None:
        """The objective of the next request; here none."""
        return None

    @rule(prompt=st.integers(1, CONTEXT - 1), output=st.integers(1, 50), same=st.booleans())
    def add(self, *, prompt: int, output: int, same: bool) -> None:
        self.calls += 1
        name, family = f"r{self.calls}", prompt if same else 100 + self.calls
        self.answer[name], self.family[name] = output, family
        penalty = 1.0 if self.calls % 5 == 0 else 0.0
        sampling = Sampling(max_tokens=output, ignore_eos=self.hashed, presence_penalty=penalty)
        ids = (family % 256,) * prompt
        call = EngineCall(call_id=name, prompt_ids=ids, sampling=sampling, objective=self.objective())
        self.engine.add(call, self.now_ns)
        self.wanted[name] = min(output, CONTEXT - prompt)
        self.alive.add(name)

    @rule(data=st.data())
    def abort(self, *, data: st.DataObject) -> None:
        if self.alive:
            name = data.draw(st.sampled_from(sorted(self.alive)))
            assert self.engine.abort(name)
            assert not self.engine.abort(name)
            self.alive.remove(name)
            self.aborted += 1

    @rule(most=st.sampled_from([1, 4, 100]), data=st.data())
    def run(self, *, most: int, data: st.DataObject) -> None:
        run = self.engine.plan(self.now_ns, most)
        if run is None:
            return
        assert run.iterations <= most
        iterations = data.draw(st.integers(min(1, run.iterations), run.iterations))
        assert run.end_ns(iterations) > self.now_ns, "time never goes back, and never stands still"
        before = self.engine.counters.generation_tokens
        self.take(self.engine.commit(iterations))
        assert self.engine.counters.generation_tokens - before <= iterations * self.capacity.seqs_max
        self.now_ns = run.end_ns(iterations)

    @rule()
    def collect(self) -> None:
        self.take(tuple(Emission(id, ids, None, None, 0) for id, ids in self.engine.collect()))
        assert self.engine.collect() == []

    @rule()
    def sleep_and_wake(self) -> None:
        self.engine.sleep()
        assert self.engine.plan(self.now_ns, 1) is None
        assert (self.engine.kv_usage, len(self.engine._cache.host)) == (0, 0)
        self.engine.wake()

    @rule()
    def run_out(self) -> None:
        while (run := self.engine.plan(self.now_ns, 100)) is not None:
            self.take(self.engine.commit(run.iterations))
            self.now_ns = run.end_ns(run.iterations)
        assert not self.alive
        self.engine._cache.free_written(self.engine._cache.host.write_free_ns)
        assert self.engine.kv_usage == 0

    def take(self, emissions: tuple[Emission, ...]) -> None:
        for emission in emissions:
            name = emission.call_id
            assert name in self.alive, "nobody hears of a request after its end"
            assert emission.token_ids
            self.tokens[name] += len(emission.token_ids)
            assert self.tokens[name] <= self.wanted[name]
            if emission.finish is not None:
                assert self.tokens[name] == self.wanted[name], "tokens emitted are tokens wanted"
                self.alive.remove(name)
                self.ended += 1

    @invariant()
    def requests_are_conserved(self) -> None:
        assert self.calls == self.ended + self.aborted + len(self.alive)
        assert self.engine.running + self.engine.waiting == len(self.alive)
        assert self.engine.running <= self.capacity.seqs_max

    @invariant()
    def blocks_are_conserved(self) -> None:
        batch, blocks = self.engine._batch, self.engine._cache.blocks
        holders = [*batch.running, *batch.loading]
        leaving = [block for _, blocks in self.engine._cache._leaving for block in blocks]
        references = Counter([*leaving, *(block for s in holders for block in s.blocks)])
        assert all(not s.blocks for s in (*batch.waiting, *batch.parked))
        assert blocks.used == len(references)
        assert blocks.used + blocks.free == blocks.total == self.capacity.kv_blocks
        assert blocks.references() == references.total()
        assert all(len(set(s.blocks)) == len(s.blocks) for s in holders)
        for s in holders:
            computed = batch.decodes.computed(s)
            assert len(s.blocks) * self.capacity.block_tokens >= computed + s.loading
        digests: dict[int, int] = {}
        for s in holders:
            full = batch.decodes.computed(s) // self.capacity.block_tokens
            for block, digest in zip(s.blocks[:full], s.generation.digests[:full], strict=True):
                assert digests.setdefault(block, digest) == digest, "a block is shared by equal texts only"

    @invariant()
    def host_memory_is_kept_within(self) -> None:
        assert len(self.engine._cache.host) <= self.host_blocks
