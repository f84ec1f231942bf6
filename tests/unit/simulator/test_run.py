from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.step_time import FRACTION_BITS, StepTimes
from support.iteration_times import iteration_times, timed

PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A10")
FLAT = IterationTime.constant(10.0)
NS = 1 << FRACTION_BITS
runs = st.builds(
    Run, st.integers(0, 10**24), st.integers(NS, 10**18), st.integers(0, 10**13), st.integers(1, 3000)
)

chunks = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 400)), max_size=8)
"""Position and new tokens of each chunk of a prompt."""


@given(runs, st.integers(1, 200))
def test_the_end_is_the_sum_of_the_iterations(run: Run, iterations: int) -> None:
    ticks = run.begin_ticks + sum(run.first_ticks + i * run.growth_ticks for i in range(iterations))
    assert run.end_ticks(iterations) == ticks
    assert run.end_ns(iterations) == ticks // NS


@given(runs, st.data())
def test_a_run_cut_anywhere_ends_when_the_whole_does(run: Run, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, run.iterations))
    rest = Run(
        run.end_ticks(cut), run.first_ticks + cut * run.growth_ticks, run.growth_ticks, run.iterations - cut
    )
    assert rest.end_ticks(rest.iterations) == run.end_ticks(run.iterations)


@given(runs, st.data())
def test_through_finds_the_first_iteration_that_ends_late_enough(run: Run, data: st.DataObject) -> None:
    at_ns = data.draw(st.integers(run.end_ns(0) - 5, run.end_ns(run.iterations) + 5))
    through = run.through(at_ns)
    assert 1 <= through <= run.iterations
    assert through == run.iterations or run.end_ns(through) >= at_ns
    assert through == 1 or run.end_ns(through - 1) < at_ns


def test_a_run_that_only_waits_has_nothing_to_cut() -> None:
    run = Run(7 * NS, 0, 0, 0)
    assert (run.through(3), run.end_ns(0)) == (0, 7)


TOKENS_MAX = 4096


@settings(max_examples=200, deadline=None)
@given(iteration_times(TOKENS_MAX), chunks, st.integers(0, 512), st.integers(0, 10**6))
def test_whole_ticks_are_within_a_nanosecond_of_the_formula(
    of: IterationTime, chunks: list[tuple[int, int]], decodes: int, context: int
) -> None:
    times = StepTimes(timed(PROFILE, of), TOKENS_MAX)
    computed = sum(new for _position, new in chunks)
    admitted = sum(not position for position, _new in chunks)
    context = context if decodes else 0
    ticks = times.ticks(
        prefills=len(chunks),
        prefill_tokens=computed,
        double_pairs=sum(new * (2 * position + new) for position, new in chunks),
        decodes=decodes,
        context_tokens=context,
        admitted=admitted,
    )
    if not chunks and not decodes:
        assert ticks == 0
        return
    ms = of.ms(
        tokens=computed + decodes,
        context_tokens=context,
        sequences=len(chunks) + decodes,
        pairs=sum(pairs_of(new, position) for position, new in chunks),
        admitted=admitted,
        mixed=bool(chunks),
    )
    assert ticks / NS == pytest.approx(ms * 1e6, rel=1e-9, abs=1)


@settings(max_examples=200, deadline=None)
@given(iteration_times(TOKENS_MAX), st.integers(1, 512), st.integers(0, 10**6))
def test_without_prompts_an_iteration_grows_by_a_token_of_context_per_sequence(
    of: IterationTime, decodes: int, context: int
) -> None:
    times = StepTimes(timed(PROFILE, of), TOKENS_MAX)
    now, next_one = (decode_ticks(times, decodes, context + decodes * passed) for passed in (0, 1))
    assert next_one - now == times.growth_ticks(decodes) == decodes * times.growth_ticks(1)
    assert times.growth_ticks(1) / NS == pytest.approx(of.kv_ms * 1e6, abs=1)


def test_the_weights_are_a_floor_then_a_kink_then_a_slope() -> None:
    of = IterationTime(host_ms=1.0, linear_ms=((1.0, 20.0), (500.0, 20.0), (1500.0, 60.0)), kv_ms=0.0)
    times = StepTimes(timed(PROFILE, of), TOKENS_MAX)
    ms = {tokens: prompt_ms(times, tokens) for tokens in (1, 250, 500, 501, 1000, 1500, 4000)}
    assert ms[1] == ms[250] == ms[500] == pytest.approx(21.0)
    assert ms[501] == pytest.approx(21.04)
    assert ms[1000] == pytest.approx(41.0)
    assert ms[1500] == pytest.approx(61.0)
    assert ms[4000] == pytest.approx(161.0), "beyond the last point the last slope goes on"


def test_context_costs_its_own_price_beside_prompts() -> None:
    times = StepTimes(timed(PROFILE, replace(FLAT, kv_ms=0.5, kv_mixed_ms=0.75)), TOKENS_MAX)
    assert decode_ticks(times, 2, 100) / (NS * 1e6) == pytest.approx(10 + 50)
    mixed = times.ticks(prefills=1, prefill_tokens=5, double_pairs=25, decodes=2, context_tokens=100)
    assert mixed / (NS * 1e6) == pytest.approx(10 + 75)


def test_each_sequence_and_each_pair_of_tokens_costs() -> None:
    of = replace(FLAT, sequence_ms=2.0, square_ms=0.001)
    times = StepTimes(timed(PROFILE, of), TOKENS_MAX)
    assert decode_ticks(times, 7, 100) / (NS * 1e6) == pytest.approx(10 + 14)
    # 100 tokens after 300 others: 100 x (300 + 50) pairs.
    ticks = times.ticks(
        prefills=1, prefill_tokens=100, double_pairs=100 * (2 * 300 + 100), decodes=0, context_tokens=0
    )
    assert ticks / (NS * 1e6) == pytest.approx(10 + 2 + 35)


def test_no_iteration_takes_less_than_a_nanosecond() -> None:
    of = IterationTime(host_ms=0.0, linear_ms=((1.0, 1e-12),), kv_ms=0.0)
    assert decode_ticks(StepTimes(timed(PROFILE, of), 8), 1, 1) == NS


def decode_ticks(times: StepTimes, decodes: int, context: int) -> int:
    return times.ticks(prefills=0, prefill_tokens=0, double_pairs=0, decodes=decodes, context_tokens=context)


def prompt_ms(times: StepTimes, tokens: int) -> float:
    ticks = times.ticks(
        prefills=1, prefill_tokens=tokens, double_pairs=tokens**2, decodes=0, context_tokens=0
    )
    return ticks / (NS * 1e6)
