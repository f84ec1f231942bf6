"""KV blocks in host memory: written through, loaded instead of computed."""

import random
from dataclasses import replace

import pytest

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.view import View
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import hashed_generation
from qlm.simulator.engine.host_cache import NO_COPIES, PROACTIVE, HostCache, KvOffloading

BLOCK = 8
PROFILE = replace(
    find_profile(builtin_profiles(), "llama-3-8b", "A10"),
    host_bandwidth_bytes_per_s=1e9,
    kv_bytes_per_token=1000,
    async_scheduling=False,
)
BLOCK_NS = BLOCK * 1000


def make_engine(
    *,
    blocks: int = 15,
    host_blocks: int = 1000,
    bytes_per_s: float = 1e9,
    offloading: KvOffloading = PROACTIVE,
    policy: BatchPolicy | None = None,
) -> BatchingEngine:
    capacity = EngineCapacity(kv_tokens=blocks * BLOCK, block_tokens=BLOCK, seqs_max=4, context_tokens=120)
    start = hashed_generation(block_tokens=BLOCK, context_tokens=120, mean_output_tokens=1e9)
    profile = replace(PROFILE, host_bandwidth_bytes_per_s=bytes_per_s)
    return BatchingEngine(
        profile, capacity, start, batched_tokens_max=256, host_kv_bytes=host_blocks * BLOCK * 1000,
        offloading=offloading, policy=policy,
    )  # fmt: skip


def call(name: str, first: int, prompt: int, output: int) -> EngineCall:
    sampling = Sampling(max_tokens=output, ignore_eos=True)
    return EngineCall(call_id=name, prompt_ids=(first, *[1] * (prompt - 1)), sampling=sampling)


def run_out(engine: BatchingEngine, now_ns: int = 0) -> int:
    while (run := engine.plan(now_ns, 1000)) is not None:
        engine.commit(run.iterations)
        now_ns = run.end_ns(run.iterations)
    return now_ns


def one_iteration(engine: BatchingEngine, now_ns: int) -> int:
    run = engine.plan(now_ns, 1)
    assert run is not None
    engine.commit(run.iterations)
    return run.end_ns(run.iterations)


def fill_with(engine: BatchingEngine, now_ns: int) -> int:
    """Use all blocks of the accelerator for something else."""
    engine.add(call("other", 9, 119, 1), now_ns)
    return run_out(engine, now_ns)


def test_full_blocks_are_written_through_once() -> None:
    engine = make_engine()
    engine.add(call("a", 1, 20, 13), 0)
    now_ns = run_out(engine)
    assert engine.counters.offloaded_tokens == 4 * BLOCK
    engine.add(call("b", 1, 20, 13), now_ns)
    run_out(engine, now_ns)
    assert engine.counters.offloaded_tokens == 4 * BLOCK


def test_what_the_accelerator_has_lost_is_loaded_and_the_rest_computed() -> None:
    engine = make_engine()
    engine.add(call("a", 1, 20, 1), 0)
    now_ns = fill_with(engine, run_out(engine))
    engine.add(call("a", 1, 20, 1), now_ns)
    wait = engine.plan(now_ns, 1000)
    assert wait is not None
    assert (wait.iterations, wait.end_ns(0)) == (0, now_ns + 2 * BLOCK_NS)
    assert engine.commit(0) == ()
    assert (engine.running, engine.waiting) == (0, 1)
    run = engine.plan(now_ns + 2 * BLOCK_NS, 1000)
    assert run is not None
    taken_ns = run.end_ns(1) - run.end_ns(0)
    assert taken_ns == pytest.approx(PROFILE.prefill_ms(1, 4, position=2 * BLOCK) * 1e6, abs=1)
    (emission,) = engine.commit(1)
    assert emission.cached_tokens == engine.counters.reloaded_tokens == 2 * BLOCK


def test_loads_share_the_link_and_others_go_on_meanwhile() -> None:
    engine = make_engine(blocks=40)
    engine.add(call("a", 1, 20, 1), 0)
    engine.add(call("b", 2, 20, 1), 0)
    now_ns = run_out(engine)
    for name in "xyz":
        engine.add(call(name, ord(name), 119, 1), now_ns)
    now_ns = run_out(engine, now_ns)
    for name, first in (("a", 1), ("new", 7), ("b", 2)):
        engine.add(call(name, first, 20, 2), now_ns)
    run = engine.plan(now_ns, 1000)
    assert run is not None
    assert (engine.running, engine.waiting) == (1, 2)
    loads = [sequence.ready_ns - now_ns for sequence in engine._batch.loading]
    assert loads == [2 * BLOCK_NS, 4 * BLOCK_NS]
    run_out(engine, now_ns)
    assert engine.counters.reloaded_tokens == 4 * BLOCK


def test_a_loaded_request_joins_the_batch_at_the_next_iteration() -> None:
    engine = make_engine(blocks=30, bytes_per_s=1e6)
    engine.add(call("a", 1, 100, 1), 0)
    now_ns = run_out(engine)
    for name in "xy":
        engine.add(call(name, ord(name), 119, 1), now_ns)
    now_ns = run_out(engine, now_ns)
    engine.add(call("long", 7, 5, 100), now_ns)
    engine.add(call("a", 1, 100, 2), now_ns)
    first = engine.plan(now_ns, 1000)
    assert first is not None
    ready_ns = engine._batch.loading[0].ready_ns
    engine.commit(first.iterations)
    run = engine.plan(first.end_ns(1), 1000)
    assert run is not None
    assert 1 < run.iterations < 99
    assert run.end_ns(run.iterations - 1) < ready_ns <= run.end_ns(run.iterations)
    engine.commit(run.iterations)
    assert engine.plan(run.end_ns(run.iterations), 1000) is not None
    assert (engine.running, engine.waiting) == (2, 0)


def test_a_preempted_request_is_reloaded_instead_of_recomputed() -> None:
    engine = make_engine()
    for name, first in (("a", 1), ("b", 2)):
        engine.add(call(name, first, 50, 60), 0)
    run_out(engine)
    assert engine.counters.preemptions > 0
    assert engine.counters.reloaded_tokens > 0


def test_sleeping_discards_the_host_copies() -> None:
    engine = make_engine()
    engine.add(call("a", 1, 20, 1), 0)
    now_ns = run_out(engine)
    engine.sleep()
    engine.wake()
    engine.add(call("a", 1, 20, 1), now_ns)
    run_out(engine, now_ns)
    assert (engine.counters.reloaded_tokens, engine.counters.prefix_hits) == (0, 0)


def test_an_aborted_load_frees_its_blocks() -> None:
    engine = make_engine()
    engine.add(call("a", 1, 20, 1), 0)
    now_ns = fill_with(engine, run_out(engine))
    engine.add(call("a", 1, 20, 1), now_ns)
    engine.plan(now_ns, 1)
    assert engine.kv_usage > 0
    assert engine.abort("a")
    assert (engine.kv_usage, engine.waiting, engine.plan(now_ns, 1)) == (0, 0, None)


def test_the_host_cache_forgets_what_was_used_longest_ago() -> None:
    cache = HostCache(host_bytes=35, block_bytes=10, bytes_per_s=1e9)
    assert (cache.blocks_max, cache.store([1, 2, 3]), cache.store([1, 4])) == (3, 3, 1)
    assert [cache.cached([digest]) for digest in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert (cache.cached([3, 4, 2, 1]), len(cache)) == (2, 3)
    assert (cache.load([3, 4], 100), cache.load([1], 105), cache.load([1], 500)) == (120, 130, 510)


def test_blocks_of_ended_requests_go_first_the_last_of_a_text_before_its_head() -> None:
    cache = HostCache(host_bytes=60, block_bytes=10, bytes_per_s=1e9)
    cache.store([1, 2])
    cache.store([3, 4, 5, 6])
    cache.end([3, 4, 5, 6], shared=0)
    cache.store([7, 8])
    assert [cache.cached([digest]) for digest in range(1, 9)] == [1, 1, 1, 1, 0, 0, 1, 1]
    cache.load([3], 0)
    cache.store([9, 10])
    there = [digest for digest in range(1, 11) if cache.cached([digest])]
    assert there == [2, 3, 7, 8, 9, 10], "3 is in use again"
    assert len(cache) == cache.blocks_max


class LatestName:
    """The request with the last name runs, and all others yield to it."""

    def decide(self, view: View) -> Decision:
        return Decision(run=(max(view.ids),))

    def room(self, view: View) -> int:
        return 4


def run_others(engine: BatchingEngine, number: int, now_ns: int) -> int:
    """Let requests with 7 full blocks each begin and end, before whose name all others yield."""
    for other in range(number):
        engine.add(call(f"z{other}", 100 + other, 60, 1), now_ns)
        now_ns = one_iteration(engine, now_ns)
    return now_ns


def test_what_a_policy_preempts_is_kept_before_what_has_ended() -> None:
    engine = make_engine(host_blocks=20, policy=LatestName())
    engine.add(call("a", 1, 60, 50), 0)
    now_ns = one_iteration(engine, 0)
    run_out(engine, run_others(engine, 8, now_ns))
    assert engine.counters.reloaded_tokens == 56, "its whole blocks, past 64 blocks of others"


def test_what_a_policy_preempts_is_kept_before_the_answer_of_an_aborted_request() -> None:
    engine = make_engine(host_blocks=20, policy=LatestName())
    engine.add(call("a", 1, 60, 50), 0)
    now_ns = one_iteration(engine, 0)
    engine.add(call("b", 2, 9, 100), now_ns)
    for _ in range(80):
        now_ns = one_iteration(engine, now_ns)
    assert engine.abort("b")
    run_out(engine, run_others(engine, 1, now_ns))
    assert engine.counters.reloaded_tokens == 56


def test_a_request_that_ends_before_it_has_run_leaves_the_copies_of_others_alone() -> None:
    engine = make_engine(host_blocks=20, policy=LatestName())
    engine.add(call("a", 1, 60, 50), 0)
    now_ns = one_iteration(engine, 0)
    engine.add(call("same", 1, 60, 50), now_ns)
    engine.add(call("z", 3, 60, 1), now_ns)
    now_ns = one_iteration(engine, now_ns)
    assert engine.abort("same")
    run_out(engine, run_others(engine, 8, now_ns))
    assert engine.counters.reloaded_tokens == 56


def test_one_direction_of_the_link_waits_for_the_other_where_they_do_not_overlap() -> None:
    both, one = (
        HostCache(
            host_bytes=1000, block_bytes=10, bytes_per_s=1e9, offloading=KvOffloading(overlaps=overlaps)
        )
        for overlaps in (True, False)
    )
    for cache in (both, one):
        assert (cache.write([1, 2], 100), cache.write([1, 2], 101)) == (2, 0)
    assert (both.load([1], 100), one.load([1], 100)) == (110, 130)
    assert (one.write([3], 200), one.load([1], 199)) == (1, 209), "a write that comes later"
    one.write_until(205)
    assert (one.write_free_ns, both.write_free_ns) == (219, 0)


class MakesWay:
    """A policy that lets the first of two requests make way for the second one, once."""

    def decide(self, view: View) -> Decision:
        if view.now_s < 0.3:
            return Decision(run=(min(view.ids),), again_s=0.3)
        return Decision(run=(max(view.ids),))

    def room(self, view: View) -> int:
        return 4


def make_way(
    offloading: KvOffloading, *, blocks: int = 16, host_blocks: int = 1000
) -> tuple[int, BatchingEngine, int]:
    """Return the end of both requests, the engine, and the most blocks that were in use."""
    engine = make_engine(
        blocks=blocks, host_blocks=host_blocks, bytes_per_s=1e6, offloading=offloading, policy=MakesWay()
    )
    for name in ("a", "b"):
        engine.add(call(name, ord(name), 60, 50), 0)
    now_ns, used = 0, 0.0
    while (run := engine.plan(now_ns, 1000)) is not None:
        engine.commit(run.iterations)
        used = max(used, engine.kv_usage)
        now_ns = run.end_ns(run.iterations)
    return now_ns, engine, round(used * engine.capacity.kv_blocks)


def test_written_late_the_next_request_waits_until_the_evicted_one_is_in_host_memory() -> None:
    through_ns, through, _ = make_way(KvOffloading())
    late_ns, late, _ = make_way(KvOffloading(writes_through=False))
    written = late.counters.offloaded_tokens // BLOCK
    assert 60 // BLOCK <= written < through.counters.offloaded_tokens // BLOCK, "one eviction, in its middle"
    assert late_ns - through_ns == pytest.approx(written * BLOCK * 1_000_000, abs=1)
    assert late.counters.reloaded_tokens == through.counters.reloaded_tokens > 0


def test_written_late_an_evicted_request_keeps_its_blocks_meanwhile() -> None:
    through_ns, _, least = make_way(KvOffloading(), blocks=40)
    late_ns, late, most = make_way(KvOffloading(writes_through=False), blocks=40)
    assert least < most, "the next one begins beside it"
    assert (late_ns, late.counters.reloaded_tokens) == (through_ns, 0), "the accelerator still has the blocks"


def test_written_late_nothing_is_written_of_who_is_never_evicted() -> None:
    engine = make_engine(offloading=KvOffloading(writes_through=False))
    engine.add(call("a", 1, 20, 13), 0)
    run_out(engine)
    assert engine.counters.offloaded_tokens == 0


@pytest.mark.parametrize("seed", range(20))
def test_copies_that_are_recounted_are_those_in_the_cache(seed: int) -> None:
    draw = random.Random(seed)
    cache = HostCache(host_bytes=120, block_bytes=10, bytes_per_s=1e9)
    texts = [range(6), [0, 1, 2, 13, 14, 15], range(20, 26), range(40, 46)]  # the first two share three
    known = [NO_COPIES] * len(texts)
    for _ in range(400):
        text = draw.choice(texts)
        match draw.choice(("store", "load", "clear", "end", "look", "look")):
            case "store":
                cache.store(text[: draw.randint(1, 6)])
            case "load":
                cache.load(text[: cache.cached(text)], 0)
            case "clear" if draw.random() < 0.05:
                cache.clear()
            case "end":
                cache.end(text, shared=3 if text[0] == 0 else 0)
                known[texts.index(text)] = NO_COPIES
            case _:
                at = texts.index(text)
                known[at] = cache.recounted(known[at], text)
                assert known[at].blocks == cache.cached(text)


def test_negative_host_memory_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="host_kv_bytes"):
        make_engine(host_blocks=-1)
