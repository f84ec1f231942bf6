"""Measurement of an engine, against emulated engines in virtual time: what was timed is what they do."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.profiling.facts import Identity, build_profile, given_facts, request_ms
from qlm.cli.profiling.grid import Cell, Grid, answer_tokens, choose_grid
from qlm.cli.profiling.identify import Described
from qlm.cli.profiling.measure import Measured, Prober, measure, measure_swap
from qlm.cli.profiling.settings import FACTS, Settings, choose_settings
from qlm.cli.profiling.stream import Stream
from qlm.cli.profiling.timing import are_chunks, iterations_until, steady_ms
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall, EngineChunk, EngineLoad
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.columns import Columns, unidentified
from qlm.rct_estimator.profiles.file import parse_profile_text, profile_text
from qlm.rct_estimator.profiles.fit import fit_iteration
from qlm.rct_estimator.profiles.points import FitPoint, errors
from qlm.rct_estimator.profiles.profile import Profile, SourceKind
from support.profiled_engine import LARGE, TRUTH, engine_profile, measured_by
from support.virtual_engine import WAY_S, VirtualEngine, in_virtual_time

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


def test_iterations_are_timed_by_the_tokens_of_a_decode() -> None:
    stream = [(10 * MS, 1), (20 * MS, 2), (30 * MS, 3), (90 * MS, 4), (150 * MS, 5), (160 * MS, 6)]
    assert iterations_until(stream, 151 * MS, 2) == ([10.0, 60.0, 60.0], 5)
    assert iterations_until(stream, 89 * MS, 1) == ([10.0, 60.0], 4)
    assert iterations_until(stream, 31 * MS, 2) is None, "it began too late"
    assert iterations_until([*stream[:3], *stream[4:]], 150 * MS, 2) is None, "two tokens came as one chunk"


@pytest.mark.parametrize(
    ("times", "whole"),
    [
        ([10, 60], True),
        ([10, 60, 60, 25], True),
        ([60, 60], False),
        ([10, 10, 60], False),
        ([10, 12], True),
    ],
    ids=["one", "three", "began before", "began later", "too short to judge"],
)
def test_a_prompt_that_took_other_iterations_than_expected_is_noticed(
    times: list[float], whole: bool
) -> None:
    assert are_chunks(times, 10.0) is whole


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
    try:
        grid = choose_grid(capacity, quick=quick, batched_tokens_max=batched)
    except InvalidValueError:
        assert capacity.kv_tokens < 512
        return
    for cell in grid.cells:
        text = cell.context + answer_tokens(cell, grid.decode_tokens, batched)
        assert text < capacity.context_tokens
        assert cell.decodes * text + max((b * n for b, n in cell.prompts), default=0) <= capacity.kv_tokens
        for number, tokens in cell.prompts:
            assert cell.decodes + number <= capacity.seqs_max
            assert tokens < capacity.context_tokens
            assert number == 1 or number * tokens + cell.decodes <= batched


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("context_tokens", [2048, 8192])
def test_a_grid_identifies_all_coefficients(quick: bool, context_tokens: int) -> None:
    capacity = replace(LARGE, context_tokens=context_tokens)
    grid = choose_grid(capacity, quick=quick, batched_tokens_max=2048)
    points = [FitPoint(0, 0, 0, cell.decodes, cell.context, 10.0) for cell in grid.cells]
    points += [
        FitPoint(b, min(n, 2047), 0, cell.decodes, cell.context, 10 + 0.05 * b * n)
        for cell in grid.cells
        for b, n in cell.prompts
    ]
    points += [FitPoint(1, 2047, 2047, 1, 20, 110.0)] if context_tokens > 4096 else []
    assert set(unidentified(Columns.of(points))) <= ({"square_ms"} if context_tokens == 2048 else set())


def test_a_grid_has_short_prompts_prompts_beside_decodes_and_prompts_up_to_the_context() -> None:
    grid = choose_grid(LARGE, quick=False, batched_tokens_max=2048)
    alone, *others = grid.cells
    assert {n for b, n in alone.prompts if b == 1} >= {16, 32, 64, 128, 256}
    assert max(n for _b, n in alone.prompts) > 8000
    mixed = {(cell.decodes, n) for cell in others for _b, n in cell.prompts}
    assert mixed == {(decodes, n) for decodes in (8, 32, 128) for n in (128, 1024)}
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert len({cell.context for cell in others if cell.decodes == batch}) >= 2, batch


def test_an_engine_too_small_to_measure_is_refused() -> None:
    tiny = EngineCapacity(kv_tokens=128, block_tokens=16, seqs_max=4, context_tokens=100)
    with pytest.raises(InvalidValueError, match="context is 100"):
        choose_grid(tiny, quick=True, batched_tokens_max=2048)


def measure_engine(profile: Profile, *, quick: bool, stated: int = 2048) -> tuple[Measured, list[str]]:
    seen: list[str] = []

    async def scenario(engine: VirtualEngine) -> Measured:
        grid = choose_grid(await engine.capacity(), quick=quick, batched_tokens_max=stated)
        grid = replace(grid, repeats=1)
        measured = await measure(measured_by(engine, grid), grid, seen.append)
        assert len(seen) == grid.measurements
        return measured

    return in_virtual_time(profile, scenario), seen


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_the_measured_times_are_those_of_the_engine(quick: bool, async_scheduling: bool) -> None:
    profile = engine_profile(async_scheduling=async_scheduling)
    measured, _seen = measure_engine(profile, quick=quick)
    assert measured.skipped == ()
    assert errors(TRUTH, measured.points)[1] < 0.01
    fitted = fit_iteration(measured.points)
    assert fitted.fit.unidentified == ("host_ms",)
    for name in ("kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms"):
        assert getattr(fitted.iteration, name) == pytest.approx(getattr(TRUTH, name), rel=0.1), name
    assert request_ms(measured.lone_ms, fitted) == pytest.approx(2000 * WAY_S, rel=0.1)
    assert max(p.position + p.new for p in measured.points) > 7000
    assert max(p.sequences for p in measured.points) == (64 if not quick else 33)


@pytest.mark.parametrize("actual", [1024, 4096])
def test_a_token_budget_other_than_the_stated_one_is_noticed(actual: int) -> None:
    profile = engine_profile(batched_tokens_max=actual)
    measured, _seen = measure_engine(profile, quick=True)
    assert any("is --max-num-batched-tokens right?" in line for line in measured.skipped)
    assert errors(TRUTH, measured.points)[1] < 0.02


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_token_budget_somewhat_below_the_stated_one_spoils_no_point(async_scheduling: bool) -> None:
    """Ahead of time, a prompt that took two iterations is not told from a late one; their sum is right."""
    profile = engine_profile(batched_tokens_max=1500, async_scheduling=async_scheduling)
    measured, _seen = measure_engine(profile, quick=True)
    assert any("is --max-num-batched-tokens right?" in line for line in measured.skipped)
    assert errors(TRUTH, measured.points)[1] < (0.07 if async_scheduling else 0.02)


@pytest.mark.parametrize(("actual", "stated"), [(False, True), (True, False)])
def test_a_wrong_word_on_scheduling_ahead_spoils_no_point(actual: bool, stated: bool) -> None:
    profile = engine_profile(async_scheduling=actual)

    async def scenario(engine: VirtualEngine) -> Measured:
        grid = choose_grid(await engine.capacity(), quick=True, batched_tokens_max=2048)
        engine.async_scheduling = stated
        return await measure(measured_by(engine, replace(grid, repeats=1)), grid, lambda _: None)

    measured = in_virtual_time(profile, scenario)
    assert measured.skipped == ()
    assert errors(TRUTH, measured.points)[1] < 0.01


def test_requests_that_were_admitted_early_may_end_while_the_others_are_timed() -> None:
    cell, grid = Cell(4, 64), Grid(cells=(), repeats=1, decode_tokens=40, batched_tokens_max=2048)

    async def scenario(engine: VirtualEngine) -> FitPoint | None:
        prober = measured_by(engine, grid)
        async with prober.decoding(cell, grid.decode_tokens) as streams:
            await streams[0].until(streams[0].tokens_max - 5)
            return await prober.decode_point(cell, streams, grid.decode_tokens)

    point = in_virtual_time(engine_profile(), scenario)
    assert point is not None
    assert errors(TRUTH, [point])[1] < 0.01


def test_the_whole_grid_is_measured_before_any_point_is_measured_again() -> None:
    seen: list[str] = []
    cells = (Cell(1, 16, ((1, 128),)), Cell(2, 64))
    grid = Grid(cells=cells, repeats=3, decode_tokens=8, batched_tokens_max=2048)

    async def scenario(engine: VirtualEngine) -> Measured:
        return await measure(measured_by(engine, grid), grid, seen.append)

    measured = in_virtual_time(engine_profile(), scenario)
    assert seen == ["decode 1 x 16", "prefill 1 x 128 beside 1 x 16", "decode 2 x 64"] * 3
    assert len(seen) == grid.measurements
    assert [point[:4] for point in measured.points] == [(0, 0, 0, 1), (1, 128, 0, 1), (0, 0, 0, 2)]


class ScriptedEngine:
    """An engine that answers with fewer tokens than it was asked for."""

    def __init__(self) -> None:
        self.calls: list[EngineCall] = []
        self.now_ns = 0

    async def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        self.calls.append(call)
        yield EngineChunk(token_ids=(1,) * (call.sampling.max_tokens - 1), finish="length")

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


def test_an_answer_cut_short_is_an_error_and_no_measurement() -> None:
    call = EngineCall(call_id="x", prompt_ids=(1,), sampling=Sampling(max_tokens=32))

    async def scenario() -> None:
        await Stream(ScriptedEngine(), call, lambda: 0).until(32)

    with pytest.raises(InvalidValueError, match=r"answer is '31 tokens'; expected 32 tokens"):
        asyncio.run(scenario())


def test_no_two_prompts_share_their_first_block() -> None:
    engine = ScriptedEngine()
    prober = Prober(
        engine, batched_tokens_max=2048, context_tokens=8192, async_scheduling=True, clock_ns=lambda: 0,
        rng=random.Random(1),
    )  # fmt: skip

    async def scenario() -> None:
        async with prober.decoding(Cell(30, 16), 8):
            pass

    asyncio.run(scenario())
    assert len({call.prompt_ids[:16] for call in engine.calls}) == len(engine.calls) == 30
    assert len({call.call_id for call in engine.calls}) == len(engine.calls)


def test_swaps_are_timed_at_both_levels() -> None:
    engine = ScriptedEngine()
    times = asyncio.run(measure_swap(engine, lambda: engine.now_ns))
    assert times == {"unload_s": 3.0, "swap_warm_s": 2.0, "swap_reload_s": 2.0}


SETTINGS_GIVEN = {"seqs_max": None, "batched_tokens_max": None, "async_scheduling": None}


def test_settings_are_what_the_engine_says_else_what_was_given_else_the_usual() -> None:
    says = Described(served="m", version="1", seqs_max=64, batched_tokens_max=8192, async_scheduling=False)
    reported = frozenset(SETTINGS_GIVEN)
    assert choose_settings(says, SETTINGS_GIVEN) == (Settings(64, 8192, False, reported), [])
    silent = Described(served="m", version="1")
    settings, assumed = choose_settings(silent, {**SETTINGS_GIVEN, "seqs_max": 8})
    assert settings == Settings(8, 2048, True)
    assert [line.split(";")[0] for line in assumed] == [
        "assumed: --max-num-batched-tokens 2048",
        "assumed: --async-scheduling True",
    ]
    with pytest.raises(InvalidValueError, match="--max-num-seqs is 8; expected 64, which the engine reports"):
        choose_settings(says, {**SETTINGS_GIVEN, "seqs_max": 8})


def test_a_built_profile_is_one_that_can_be_read_and_says_where_numbers_come_from() -> None:
    fitted = fit_iteration([FitPoint(b, n, 0, 0, 0, 1 / 3 + 0.1 * b * n) for b in (1, 2) for n in (100, 200)])
    identity = Identity(model="m", accelerator="X", gpus=2, engine="vLLM 1", measured="Measured today.")
    settings = Settings(256, 4096, True, frozenset({"seqs_max"}))
    profile = build_profile(
        identity,
        LARGE,
        settings,
        fitted,
        given_facts(dict.fromkeys(FACTS, 2.0), "today"),
        {100: 1 / 3 + 10 + 7.0, 200: 1 / 3 + 20 + 7.0, 150: 900.0},
    )
    assert profile.request_ms == pytest.approx(7.0, rel=0.01), "the median, not the mean"
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile
    assert (profile.kv_tokens, profile.batched_tokens_max) == (LARGE.kv_tokens + 16, 4096)
    assert (profile.engine, profile.async_scheduling) == ("vLLM 1", True)
    assert profile.fit is not None
    assert "kv_ms" in profile.fit.unidentified
    for name in ("swap_cold_s", "batched_tokens_max"):
        assert profile.sources[name].kind is SourceKind.SPECIFIED
    for name in ("kv_tokens", "seqs_max"):
        assert profile.sources[name].text == "Reported by the engine. Measured today."
    assert beyond_fit(profile) == (
        "profile m on 2 x X is extrapolated to 256 requests in a batch (timed to 2), "
        "4096 tokens in an iteration (timed to 400), 8192 tokens of a text (timed to 200)",
    )
    assert beyond_fit(replace(profile, fit=None)) == ()
