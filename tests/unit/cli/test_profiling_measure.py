import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.commands.profile import token_budget
from qlm.cli.profiling.facts import FACTS, Identity, build_profile, given_facts
from qlm.cli.profiling.measure import Grid, Prober, choose_grid, measure, measure_swap, steady_ms
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall, EngineChunk, EngineLoad
from qlm.rct_estimator.profiles.columns import Columns, unidentified
from qlm.rct_estimator.profiles.file import parse_profile_text, profile_text
from qlm.rct_estimator.profiles.fit import fit_iteration
from qlm.rct_estimator.profiles.points import FitPoint
from qlm.rct_estimator.profiles.profile import SourceKind

LARGE = EngineCapacity(kv_tokens=450_000, block_tokens=16, seqs_max=256, context_tokens=8192)
MS = 1_000_000


def evenly(start_ms: float, pace_ms: float, tokens: int, chunk: int = 1) -> list[tuple[int, int]]:
    return [(round((start_ms + pace_ms * n) * MS), n) for n in range(chunk, tokens + 1, chunk)]


@given(st.integers(1, 8), st.floats(1, 50), st.integers(1, 3))
def test_the_pace_of_streams_that_run_together_is_found_whatever_the_chunks(
    streams: int, pace_ms: float, chunk: int
) -> None:
    together = [evenly(pace_ms * late, pace_ms, 60, chunk) for late in range(streams)]
    steady = steady_ms(together, 4)
    assert steady is not None
    assert steady[0] == pytest.approx(pace_ms, rel=1e-4)


def test_the_time_before_the_last_stream_begins_does_not_count() -> None:
    early = [(n * 100 * MS, n) for n in range(1, 11)] + [((1000 + n * 10) * MS, 10 + n) for n in range(1, 31)]
    late = [((1000 + n * 10) * MS, n) for n in range(1, 31)]
    steady = steady_ms([early, late], 4)
    assert steady is not None
    assert steady[0] == pytest.approx(10)
    assert steady[1] == pytest.approx((17.5 + 27.5) / 2)


@pytest.mark.parametrize(
    "streams",
    [
        [evenly(0, 10, 20), evenly(500, 10, 20)],
        [evenly(0, 10, 20), evenly(0, 10, 4)],
        [evenly(0, 10, 10)],
    ],
    ids=["one after the other", "one too short", "all too short"],
)
def test_streams_that_hardly_run_together_give_no_pace(streams: Sequence[list[tuple[int, int]]]) -> None:
    assert steady_ms(streams, 4) is None


capacities = st.builds(
    EngineCapacity,
    kv_tokens=st.integers(256, 500_000),
    block_tokens=st.just(16),
    seqs_max=st.integers(2, 512),
    context_tokens=st.integers(256, 32_768),
)


@given(capacities, st.booleans(), st.integers(256, 16_384))
def test_a_grid_asks_for_nothing_that_the_engine_cannot_hold(
    capacity: EngineCapacity, quick: bool, batched: int
) -> None:
    grid = choose_grid(capacity, quick=quick, batched_tokens_max=batched)
    for batch, tokens in grid.prefill:
        assert batch * tokens <= batched
        assert batch <= capacity.seqs_max
        assert tokens < capacity.context_tokens
    for batch, tokens in grid.decode:
        assert batch * (tokens + grid.decode_tokens) <= capacity.kv_tokens
        assert batch <= capacity.seqs_max
        assert tokens + grid.decode_tokens < capacity.context_tokens


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("context_tokens", [512, 8192])
def test_a_grid_identifies_all_coefficients(quick: bool, context_tokens: int) -> None:
    capacity = replace(LARGE, context_tokens=context_tokens)
    grid = choose_grid(capacity, quick=quick, batched_tokens_max=2048)
    points = [FitPoint(b, n, 0, 0, 0, 5 + 0.1 * b * n) for b, n in grid.prefill]
    points += [FitPoint(0, 0, 0, b, c, 5 + 0.001 * b * c) for b, c in grid.decode]
    assert set(unidentified(Columns.of(points))) <= {"kv_mixed_ms", "square_ms", "sequence_ms"}


@pytest.mark.parametrize(
    ("context_tokens", "quick", "contexts"),
    [(8192, False, {128, 512, 2048}), (1024, False, {128, 512, 896}), (1024, True, {128, 936})],
)
def test_the_longest_context_that_fits_stands_for_those_that_do_not(
    context_tokens: int, quick: bool, contexts: set[int]
) -> None:
    grid = choose_grid(replace(LARGE, context_tokens=context_tokens), quick=quick, batched_tokens_max=2048)
    assert {tokens for _batch, tokens in grid.decode} == contexts


def test_an_engine_too_small_to_measure_is_refused() -> None:
    tiny = EngineCapacity(kv_tokens=128, block_tokens=16, seqs_max=4, context_tokens=100)
    with pytest.raises(InvalidValueError, match="context is 100"):
        choose_grid(tiny, quick=True, batched_tokens_max=2048)


class ScriptedEngine:
    """An engine whose every answer takes what the script says; its clock moves with it."""

    def __init__(self, first_token_ms: Sequence[float], *, lost_tokens: int = 0) -> None:
        self.now_ns = 0
        self.calls: list[EngineCall] = []
        self._first_token_ms = list(first_token_ms)
        self._lost_tokens = lost_tokens

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        self.calls.append(call)
        self.now_ns += round(self._first_token_ms.pop(0) * MS)
        wanted = call.sampling.max_tokens - self._lost_tokens
        yield EngineChunk(token_ids=(1,) * wanted, finish="length")

    async def abort(self, call_ids: Sequence[str]) -> None:
        raise AssertionError("nothing is aborted")

    async def capacity(self) -> EngineCapacity:
        return LARGE

    async def load(self) -> EngineLoad:
        return EngineLoad(running=0, waiting=0, kv_usage=0.0)

    async def healthy(self) -> bool:
        return True

    async def sleep(self, level: int = 1) -> None:
        self.now_ns += level * 3 * 10**9

    async def wake(self) -> None:
        self.now_ns += 2 * 10**9

    async def close(self) -> None:
        return


def prober(engine: ScriptedEngine) -> Prober:
    rng = random.Random(1)
    return Prober(
        engine, batched_tokens_max=2048, context_tokens=8192, clock_ns=lambda: engine.now_ns, rng=rng
    )


def test_a_prompt_iteration_is_timed_from_the_token_before_it() -> None:
    engine = ScriptedEngine([100, 40, 1, 1])
    assert asyncio.run(prober(engine).prefill_ms(3, 128)) == pytest.approx(41)
    assert [len(call.prompt_ids) for call in engine.calls] == [2048, 128, 128, 128]


def test_prompts_that_were_split_over_iterations_are_measured_again() -> None:
    engine = ScriptedEngine([100, 40, 40, 100, 40, 1])
    assert asyncio.run(prober(engine).prefill_ms(2, 128)) == pytest.approx(40.5)
    assert asyncio.run(prober(ScriptedEngine([100, 40, 40] * 4)).prefill_ms(2, 128)) is None


def test_no_two_prompts_share_their_first_block() -> None:
    engine = ScriptedEngine([100, 40, *[0.0] * 29])
    asyncio.run(prober(engine).prefill_ms(30, 16))
    assert len({call.prompt_ids[:16] for call in engine.calls}) == len(engine.calls)
    assert len({call.call_id for call in engine.calls}) == len(engine.calls)


def test_an_answer_cut_short_is_an_error_and_no_measurement() -> None:
    with pytest.raises(InvalidValueError, match=r"answer is '31 tokens'; expected 32 tokens"):
        asyncio.run(prober(ScriptedEngine([10], lost_tokens=1)).decode_point(1, 128, 25))


def test_the_whole_grid_is_measured_before_any_point_is_measured_again() -> None:
    # Blocker and prompt, three times for each of two prompt lengths, after three calls to warm up; the
    # engine is disturbed during the second pass.
    passes = [[100, 10, 100, 20], [100, 90, 100, 90], [100, 12, 100, 22]]
    engine = ScriptedEngine([1, 1, 1, *(ms for one in passes for ms in one)])
    grid = Grid(prefill=((1, 128), (1, 256)), decode=(), repeats=3, decode_tokens=8, batched_tokens_max=2048)
    seen: list[str] = []
    measured = asyncio.run(measure(prober(engine), grid, seen.append))
    assert seen == ["prefill 1 x 128", "prefill 1 x 256"] * 3
    assert len(seen) == grid.measurements
    assert measured.points == (FitPoint(1, 128, 0, 0, 0, 12.0), FitPoint(1, 256, 0, 0, 0, 22.0))
    assert measured.skipped == ()


def test_swaps_are_timed_at_both_levels() -> None:
    engine = ScriptedEngine([])
    times = asyncio.run(measure_swap(engine, lambda: engine.now_ns))
    assert times == {"unload_s": 3.0, "swap_warm_s": 2.0, "swap_reload_s": 2.0}


def test_a_built_profile_is_one_that_can_be_read_and_says_where_numbers_come_from() -> None:
    fitted = fit_iteration([FitPoint(b, n, 0, 0, 0, 1 / 3 + 0.1 * b * n) for b in (1, 2) for n in (100, 200)])
    identity = Identity(
        model="m", accelerator="X", gpus=2, engine="vLLM 1", async_scheduling=True, measured="Measured today."
    )
    profile = build_profile(identity, LARGE, 4096, fitted, given_facts(dict.fromkeys(FACTS, 2.0), "today"))
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile
    assert (profile.kv_tokens, profile.batched_tokens_max) == (LARGE.kv_tokens + 16, 4096)
    assert (profile.engine, profile.async_scheduling) == ("vLLM 1", True)
    assert profile.fit is not None
    assert "kv_ms" in profile.fit.unidentified
    assert profile.sources["swap_cold_s"].kind is SourceKind.SPECIFIED
    assert profile.sources["kv_tokens"].text == "Reported by the engine. Measured today."


@pytest.mark.parametrize(
    ("option", "reported", "budget"),
    [(None, 8192, 8192), (512, None, 512), (512, 512, 512), (None, None, 2048)],
)
def test_the_token_budget_is_what_the_engine_reports_or_is_given(
    option: int | None, reported: int | None, budget: int
) -> None:
    assert token_budget(option, replace(LARGE, batched_tokens_max=reported)) == budget


def test_a_token_budget_that_the_engine_contradicts_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="--max-num-batched-tokens is 512; expected 8192"):
        token_budget(512, replace(LARGE, batched_tokens_max=8192))
