"""Measurement of an engine, against emulated engines in virtual time: what was timed is what they do."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from qlm.cli.profiling.facts import Identity, build_profile, given_facts, request_ms
from qlm.cli.profiling.grid import Cell, Grid, choose_grid
from qlm.cli.profiling.identify import Described
from qlm.cli.profiling.measure import Measured, Prober, mean_ms, mean_point, measure, measure_swap
from qlm.cli.profiling.settings import FACTS, Settings, choose_settings
from qlm.cli.profiling.stream import Stream
from qlm.domain.errors import EngineUnavailableError, InvalidValueError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.file import parse_profile_text, profile_text
from qlm.rct_estimator.profiles.fit import fit_iteration
from qlm.rct_estimator.profiles.points import FitPoint, errors
from qlm.rct_estimator.profiles.profile import Profile, SourceKind
from qlm.rct_estimator.profiles.token_budget import defaults_on
from support.profiled_engine import LARGE, TRUTH, engine_profile, measured_by
from support.virtual_engine import WAY_S, VirtualEngine, in_virtual_time


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

    with pytest.raises(EngineUnavailableError, match=r"answer is '31 tokens'; expected 32 tokens"):
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
    small, large = defaults_on("A10"), defaults_on("H100")
    assert choose_settings(says, SETTINGS_GIVEN, large) == (Settings(64, 8192, False, reported), [])
    silent = Described(served="m", version="1")
    settings, lines = choose_settings(silent, {**SETTINGS_GIVEN, "seqs_max": 8}, small)
    assumed = frozenset({"batched_tokens_max", "async_scheduling"})
    assert settings == Settings(8, 2048, True, assumed=assumed)
    assert [line.split(";")[0] for line in lines] == [
        "assumed: --max-num-batched-tokens 2048, vLLM's default there",
        "assumed: --async-scheduling True, vLLM's default there",
    ]
    assert choose_settings(silent, SETTINGS_GIVEN, large)[0][:3] == (1024, 8192, True)
    assert choose_settings(silent, SETTINGS_GIVEN, defaults_on("CPU"))[0][:3] == (128, 2048, False)
    with pytest.raises(InvalidValueError, match="--max-num-seqs is 8; expected 64, which the engine reports"):
        choose_settings(says, {**SETTINGS_GIVEN, "seqs_max": 8}, small)


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


def test_a_built_profile_keeps_that_context_costs_nothing_beside_prompts() -> None:
    fitted = fit_iteration([FitPoint(b, n, 0, 0, 0, 1 + 0.1 * b * n) for b in (1, 2) for n in (100, 200)])
    fitted = replace(fitted, iteration=replace(fitted.iteration, kv_ms=1e-4, kv_mixed_ms=0.0))
    identity = Identity(model="m", accelerator="X", gpus=1, engine="vLLM 1", measured="Measured today.")
    facts = given_facts(dict.fromkeys(FACTS, 2.0), "today")
    settings = Settings(256, 4096, True, assumed=frozenset({"batched_tokens_max"}))
    profile = build_profile(identity, LARGE, settings, fitted, facts, {100: 20.0})
    assert "as given" in profile.sources["seqs_max"].text
    assert "assumed to be vLLM's default" in profile.sources["batched_tokens_max"].text
    assert profile.sources["kv_mixed_ms"].kind is SourceKind.MEASURED
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile


def test_a_point_has_the_mean_of_its_measurements_without_disturbed_ones() -> None:
    timed = [FitPoint(1, 64, 0, 4, 100 + at, ms) for at, ms in enumerate((5.0, 5.0, 5.5, 8.5, 50.0))]
    assert mean_point(timed) == FitPoint(1, 64, 0, 4, 101.5, 6.0)
    assert mean_point(timed[:1]) == timed[0]
    assert mean_ms([each.ms for each in timed]) == 6.0
