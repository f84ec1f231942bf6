from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import hashed_generation
from support.iteration_times import timed

PROFILE = replace(find_profile(builtin_profiles(), "llama-3-8b", "A10"), async_scheduling=False)
SMALL = EngineCapacity(kv_tokens=16 * 8, block_tokens=8, seqs_max=4, context_tokens=120)
ROOMY = replace(SMALL, kv_tokens=8 * 1000, seqs_max=64)


def make_engine(capacity: EngineCapacity, *, mean: float = 30, batched: int = 64) -> BatchingEngine:
    start = hashed_generation(
        block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens, mean_output_tokens=mean
    )
    return BatchingEngine(PROFILE, capacity, start, batched_tokens_max=batched)


def call(name: str, prompt: Sequence[int], max_tokens: int, **sampling: object) -> EngineCall:
    return EngineCall(
        call_id=name,
        prompt_ids=tuple(prompt),
        sampling=Sampling(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
    )


def run_out(engine: BatchingEngine, outputs: dict[str, list[int]] | None = None) -> dict[str, list[int]]:
    outputs = {} if outputs is None else outputs
    now_ns = 0
    while (step := engine.step(now_ns)) is not None:
        assert step.duration_ns > 0
        now_ns += step.duration_ns
        for emission in step.emissions:
            outputs.setdefault(emission.call_id, []).extend(emission.token_ids)
    return outputs


def alone(one: EngineCall, mean: float = 30) -> list[int]:
    engine = make_engine(ROOMY, mean=mean)
    engine.add(one, 0)
    return run_out(engine)[one.call_id]


def in_order(engine: BatchingEngine, steps: int) -> list[tuple[str, str | None]]:
    seen = []
    for _ in range(steps):
        step = engine.step(0)
        seen += [(e.call_id, e.finish) for e in (step.emissions if step else ())]
    return seen


prompts = st.lists(st.integers(0, 255), min_size=1, max_size=40)
jobs = st.lists(st.tuples(prompts, st.integers(1, 60)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_tokens_do_not_depend_on_batching_or_preemption(work: list[tuple[list[int], int]]) -> None:
    engine = make_engine(SMALL)
    calls = [call(f"r{i}", prompt, longest) for i, (prompt, longest) in enumerate(work)]
    for one in calls:
        engine.add(one, 0)
    assert run_out(engine) == {one.call_id: alone(one) for one in calls}


def test_the_small_engine_of_these_tests_does_preempt() -> None:
    engine = make_engine(SMALL, mean=1e9)
    for i in range(4):
        engine.add(call(f"r{i}", [i] * 30, 60), 0)
    run_out(engine)
    assert engine.counters.preemptions > 0


@settings(max_examples=60, deadline=None)
@given(jobs, st.data())
def test_abort_and_resume_continue_the_same_answer(
    work: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    engine = make_engine(SMALL)
    calls = {f"r{i}": call(f"r{i}", prompt, longest) for i, (prompt, longest) in enumerate(work)}
    for one in calls.values():
        engine.add(one, 0)
    outputs: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(data.draw(st.integers(0, 40))):
        step = engine.step(0)
        for emission in step.emissions if step else ():
            outputs[emission.call_id] += emission.token_ids
    victims = data.draw(st.sets(st.sampled_from(sorted(calls))))
    for name in victims:
        if engine.abort(name):
            one, given_out = calls[name], outputs[name]
            left = one.sampling.max_tokens - len(given_out)
            engine.add(call(name, [*one.prompt_ids, *given_out], left), 0)
    run_out(engine, outputs)
    assert outputs == {name: alone(one) for name, one in calls.items()}


@settings(max_examples=60, deadline=None)
@given(jobs, st.data())
def test_blocks_are_conserved_and_the_batch_is_bounded(
    work: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    engine = make_engine(SMALL)
    waiting = [call(f"r{i}", prompt, longest) for i, (prompt, longest) in enumerate(work)]
    known: list[str] = []
    for _ in range(60):
        match data.draw(st.sampled_from(["add", "abort", "step", "step", "sleep"])):
            case "add" if waiting:
                engine.add(one := waiting.pop(), 0)
                known.append(one.call_id)
            case "abort" if known:
                engine.abort(known.pop(data.draw(st.integers(0, len(known) - 1))))
            case "sleep":
                engine.sleep()
                assert engine.kv_usage == 0
                engine.wake()
            case _:
                engine.step(0)
        ledger = engine._cache.blocks
        referenced = [block for s in engine._batch.running for block in s.blocks]
        assert all(not s.blocks for s in engine._batch.waiting)
        assert ledger.references() == len(referenced)
        assert ledger.used == len(set(referenced)) == ledger.total - ledger.free
        assert all(len(s.blocks) >= SMALL.blocks(s.computed) for s in engine._batch.running)
        assert engine.running <= SMALL.seqs_max


def test_an_iteration_takes_the_time_that_the_profile_says() -> None:
    engine = make_engine(ROOMY, mean=1e9)
    for i in range(3):
        engine.add(call(f"r{i}", [i] * 10, 50), 0)
    first, second = engine.step(0), engine.step(0)
    assert first is not None
    assert second is not None
    assert first.duration_ns == pytest.approx(PROFILE.prefill_ms(3, 10) * 1e6, abs=1)
    assert second.duration_ns == pytest.approx(PROFILE.decode_ms(3, 11) * 1e6, abs=1)


def test_a_mixed_iteration_pays_for_the_weights_once() -> None:
    engine = make_engine(ROOMY, mean=1e9)
    engine.add(call("old", [1] * 10, 50), 0)
    engine.step(0)
    engine.add(call("new", [2] * 20, 50), 0)
    step = engine.step(0)
    both_ms = PROFILE.iteration.ms(tokens=21, context_tokens=11, sequences=2, pairs=pairs_of(20), mixed=True)
    assert step is not None
    assert step.duration_ns == pytest.approx(both_ms * 1e6, abs=1)


SQUARE = timed(PROFILE, replace(IterationTime.constant(10.0), square_ms=0.01))
"""Only the position of a chunk tells how long it takes: 0.01 ms per pair of tokens."""


def square_engine(capacity: EngineCapacity, batched: int) -> BatchingEngine:
    start = hashed_generation(
        block_tokens=capacity.block_tokens, context_tokens=capacity.context_tokens, mean_output_tokens=1e9
    )
    return BatchingEngine(SQUARE, capacity, start, batched_tokens_max=batched)


def pairs_in_next(engine: BatchingEngine) -> float:
    """Compute an iteration; return the pairs of tokens whose time it took."""
    step = engine.step(0)
    assert step is not None
    return round((step.duration_ns / 1e6 - 10.0) / 0.01, 3)


def test_each_chunk_of_a_long_prompt_pays_for_the_tokens_before_it() -> None:
    engine = square_engine(ROOMY, batched=64)
    engine.add(call("long", range(100), 2), 0)
    assert [pairs_in_next(engine) for _ in range(3)] == [pairs_of(64), pairs_of(36, position=64), 0]


def test_a_prompt_with_a_cached_prefix_pays_for_the_rest_at_its_position() -> None:
    engine = square_engine(ROOMY, batched=128)
    engine.add(call("first", range(40), 1), 0)
    assert pairs_in_next(engine) == pairs_of(40)
    engine.add(call("second", [*range(40), *range(60)], 1), 0)
    assert pairs_in_next(engine) == pairs_of(60, position=40)


def test_a_resumed_prompt_pays_at_the_position_after_its_cached_blocks() -> None:
    engine = square_engine(ROOMY, batched=128)
    engine.add(call("r", range(33), 40), 0)
    for _ in range(10):
        engine.step(0)
    ids = alone(call("r", range(33), 40), mean=1e9)[:10]
    engine.abort("r")
    engine.add(call("r", [*range(33), *ids], 30), 0)
    assert pairs_in_next(engine) == pairs_of(3, position=40)


def test_a_preempted_prompt_pays_at_the_position_after_its_cached_blocks() -> None:
    engine = square_engine(replace(SMALL, seqs_max=2), batched=128)
    engine.add(call("old", [1] * 60, 6), 0)
    engine.add(call("young", [2] * 60, 30), 0)
    while not engine.counters.preemptions:
        assert engine.step(0) is not None
    victim = engine._batch.waiting[0]
    run = None
    while victim in engine._batch.waiting:
        run = engine.plan(0, 1)
        tokens, position = victim.tokens, victim.computed
        engine.commit(1)
    assert run is not None
    assert tokens > position > 0
    pairs = round((run.first_ticks / 2**30 / 1e6 - 10.0) / 0.01, 3)
    assert pairs == pairs_of(tokens - position, position=position)


def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    engine = make_engine(ROOMY, mean=1e9, batched=64)
    engine.add(call("old", [1], 50), 0)
    engine.step(0)
    engine.add(call("long", [2] * 100, 50), 0)
    assert in_order(engine, 2) == [("old", None), ("old", None), ("long", None)]


def test_the_profile_limits_the_tokens_of_an_iteration() -> None:
    start = hashed_generation(block_tokens=8, context_tokens=120, mean_output_tokens=1e9)
    engine = BatchingEngine(replace(PROFILE, batched_tokens_max=70), ROOMY, start)
    engine.add(call("long", [2] * 100, 50), 0)
    assert in_order(engine, 2) == [("long", None)]
    assert engine.counters.generation_tokens == 1


def test_waiting_requests_are_admitted_in_order_and_never_overtake() -> None:
    engine = make_engine(SMALL, mean=1e9)
    engine.add(call("a", [1] * 100, 5), 0)
    engine.add(call("b", [2] * 100, 5), 0)
    engine.add(call("c", [3], 5), 0)
    engine.step(0)
    assert (engine.running, engine.waiting) == (1, 2)


def test_the_watermark_leaves_blocks_for_running_requests() -> None:
    start = hashed_generation(block_tokens=8, context_tokens=120, mean_output_tokens=1e9)
    engine = BatchingEngine(PROFILE, SMALL, start, batched_tokens_max=64, watermark=0.5)
    engine.add(call("a", [1] * 40, 5), 0)
    engine.add(call("b", [2] * 40, 5), 0)
    engine.step(0)
    assert (engine.running, engine.waiting) == (1, 1)


def test_a_resumed_prompt_finds_its_full_blocks_in_the_cache() -> None:
    engine = make_engine(ROOMY, mean=1e9)
    one = call("r", range(33), 40)
    engine.add(one, 0)
    given_out = [t for _ in range(10) if (s := engine.step(0)) for e in s.emissions for t in e.token_ids]
    engine.abort("r")
    assert engine.kv_usage == 0
    engine.add(call("r", [*one.prompt_ids, *given_out], 30), 0)
    step = engine.step(0)
    assert step is not None
    # 43 tokens, of which 42 were computed: five full blocks of 8; the last three are computed anew.
    assert step.emissions[0].cached_tokens == 40
    assert step.duration_ns == pytest.approx(PROFILE.prefill_ms(1, 3, position=40) * 1e6, abs=1)
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (33 + 43, 40)


def test_sleep_drops_the_cache_and_keeps_the_requests() -> None:
    engine = make_engine(ROOMY)
    one = call("r", range(33), 20)
    engine.add(one, 0)
    outputs: dict[str, list[int]] = {"r": []}
    for _ in range(5):
        step = engine.step(0)
        outputs["r"] += [t for e in (step.emissions if step else ()) for t in e.token_ids]
    engine.sleep()
    assert engine.step(0) is None
    engine.wake()
    run_out(engine, outputs)
    assert outputs["r"] == alone(one)
    assert engine.counters.prefix_hits == 0


@pytest.mark.parametrize("mean", [2.0, 20.0, 200.0])
def test_answers_have_the_wanted_mean_length(mean: float) -> None:
    capacity = EngineCapacity(kv_tokens=8_000_000, block_tokens=16, seqs_max=400, context_tokens=100_000)
    engine = make_engine(capacity, mean=mean, batched=8192)
    for i in range(400):
        engine.add(call(f"r{i}", [i % 250, i // 250], 90_000), 0)
    lengths = [len(ids) for ids in run_out(engine).values()]
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.2)


def test_an_answer_ends_with_eos_and_says_stop() -> None:
    engine = make_engine(ROOMY, mean=3)
    engine.add(call("r", [7], 100), 0)
    last = []
    while (step := engine.step(0)) is not None:
        last = list(step.emissions)
    assert last[0].token_ids == (EOS_ID,)
    assert last[0].finish == "stop"
    assert last[0].stop_reason is None


def test_ignore_eos_and_min_tokens_hold_the_end_back() -> None:
    assert len(alone(call("r", [7], 50, ignore_eos=True), mean=2)) == 50
    assert len(alone(call("r", [7], 50, min_tokens=20), mean=1)) == 21


def test_a_stop_token_ends_the_answer_and_is_part_of_it() -> None:
    whole = alone(call("r", [7], 50), mean=1e9)
    stop = whole[5]
    first = whole.index(stop)
    assert alone(call("r", [7], 50, stop_token_ids=(stop,)), mean=1e9) == whole[: first + 1]
    assert stop not in alone(call("r", [7], 50, stop_token_ids=(stop,), min_tokens=40), mean=1e9)[:40]


def test_the_context_ends_an_answer_as_length() -> None:
    assert len(alone(call("r", [7] * 100, 5000, ignore_eos=True))) == ROOMY.context_tokens - 100


def test_a_text_is_words() -> None:
    text = bytes(alone(call("r", [7], 119), mean=1e9)).decode()
    assert set(text.lower()) <= set("abcdefghijklmnopqrstuvwxyz .")
    assert "  " not in text
    assert " " in text


@pytest.mark.parametrize("tokens", [0, 120, 500])
def test_a_prompt_without_room_for_a_token_is_refused(tokens: int) -> None:
    with pytest.raises(InvalidValueError, match="prompt"):
        make_engine(SMALL).add(call("r", [1] * tokens, 5), 0)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (lambda: make_engine(replace(SMALL, kv_tokens=64)), "kv_tokens"),
        (lambda: make_engine(SMALL, batched=2), "batched_tokens_max"),
    ],
)
def test_impossible_limits_are_refused(broken: Callable[[], BatchingEngine], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        broken()


def test_the_id_of_a_live_request_cannot_be_used_twice() -> None:
    engine = make_engine(ROOMY)
    engine.add(call("r", [1], 5), 0)
    with pytest.raises(InvalidValueError, match="call_id"):
        engine.add(call("r", [2], 5), 0)
    assert engine.abort("r")
    assert not engine.abort("r")


def test_only_what_was_planned_can_be_committed() -> None:
    engine = make_engine(ROOMY)
    engine.add(call("r", [1], 50, ignore_eos=True), 0)
    with pytest.raises(InvalidValueError, match="a run planned since"):
        engine.commit(1)
    with pytest.raises(InvalidValueError, match="iterations_max"):
        engine.plan(0, 0)
    run = engine.plan(0, 10)
    assert run is not None
    for iterations in (0, run.iterations + 1):
        with pytest.raises(InvalidValueError, match="iterations"):
            engine.commit(iterations)
    engine.commit(1)
    engine.plan(run.end_ns(1), 10)
    engine.sleep()
    with pytest.raises(InvalidValueError, match="iterations"):
        engine.commit(1)


def test_decoding_is_one_run_until_something_changes_and_collects_what_it_gave() -> None:
    engine = make_engine(ROOMY)
    engine.add(call("short", [1], 30, ignore_eos=True), 0)
    engine.add(call("long", [2], 50, ignore_eos=True), 0)
    first = engine.plan(0, 10**9)
    assert first is not None
    assert [(e.call_id, len(e.token_ids), e.finish) for e in engine.commit(first.iterations)] == [
        ("short", 1, None),
        ("long", 1, None),
    ]
    run = engine.plan(first.end_ns(1), 10**9)
    assert run is not None
    assert run.iterations == 29
    assert engine.commit(10) == ()
    assert [(call_id, len(ids)) for call_id, ids in engine.collect()] == [("short", 10), ("long", 10)]
    rest = engine.plan(run.end_ns(10), 10**9)
    assert rest is not None
    assert (rest.iterations, rest.end_ns(19)) == (19, run.end_ns(29))
    assert [(e.call_id, len(e.token_ids), e.finish) for e in engine.commit(19)] == [("short", 19, "length")]
    assert [(call_id, len(ids)) for call_id, ids in engine.collect()] == [("long", 19)]


def test_tokens_of_a_preempted_request_are_still_reported() -> None:
    engine = make_engine(SMALL, mean=1e9)
    for i in range(4):
        engine.add(call(f"r{i}", [i] * 30, 60), 0)
    now_ns, reported = 0, dict.fromkeys((f"r{i}" for i in range(4)), 0)
    while engine.counters.preemptions == 0:
        run = engine.plan(now_ns, 1000)
        assert run is not None
        for emission in engine.commit(run.iterations):
            reported[emission.call_id] += len(emission.token_ids)
        now_ns = run.end_ns(run.iterations)
    assert (engine.running, engine.waiting) == (3, 1)
    for call_id, token_ids in engine.collect():
        reported[call_id] += len(token_ids)
    assert sum(reported.values()) == engine.counters.generation_tokens
    assert reported["r3"] > 1
