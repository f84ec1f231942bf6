"""The engine time per request, measured on emulated engines in virtual time."""

from dataclasses import replace

import pytest

from qlm.cli.profiling.admission import Window, measure_windows, window_cell, with_admission
from qlm.cli.profiling.grid import choose_grid
from qlm.cli.profiling.measure import Measured, measure
from qlm.domain.fleet import EngineCapacity
from qlm.rct_estimator.profiles.fit import Fitted, fit_iteration, split
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.points import FitPoint, errors
from support.profiled_engine import LARGE, TRUTH, engine_profile, measured_by
from support.virtual_engine import VirtualEngine, in_virtual_time

SLOW = replace(TRUTH, admission_ms=4.0)
WINDOW = Window(
    decodes=8, context=100.0, prompt_tokens=16, prompts=(1,) * 8, iterations=20, ms=0.0, quiet_ms=0.0
)


def measured_on(iteration: IterationTime, *, async_scheduling: bool) -> tuple[Measured, list[Window]]:
    async def scenario(engine: VirtualEngine) -> tuple[Measured, list[Window]]:
        capacity = await engine.capacity()
        grid = replace(choose_grid(capacity, quick=True, batched_tokens_max=2048), repeats=1)
        prober, windows = measured_by(engine, grid), list[Window]()

        async def on_pass() -> None:
            windows.extend(await measure_windows(prober, capacity))

        return await measure(prober, grid, lambda _: None, on_pass), windows

    return in_virtual_time(engine_profile(iteration=iteration, async_scheduling=async_scheduling), scenario)


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("truth", [SLOW, TRUTH], ids=["4 ms per request", "none"])
def test_the_time_per_request_is_found_apart_from_tokens_and_sequences(
    truth: IterationTime, async_scheduling: bool
) -> None:
    measured, windows = measured_on(truth, async_scheduling=async_scheduling)
    assert [sum(window.prompts) for window in windows] == [8] * 9
    fitted = with_admission(fit_iteration(measured.points), windows).fitted
    assert fitted.iteration.admission_ms == pytest.approx(truth.admission_ms, rel=0.01, abs=0.05)
    assert fitted.iteration.sequence_ms == pytest.approx(truth.sequence_ms, rel=0.15)


def test_what_a_fit_without_it_leaves_unexplained_is_the_time_per_request() -> None:
    _measured, windows = measured_on(SLOW, async_scheduling=False)
    fit = fit_iteration([FitPoint(1, 100, 0, 0, 0, 10.0)])
    added = with_admission(replace(fit, iteration=TRUTH), windows)
    assert added.line is None
    assert added.fitted.iteration.admission_ms == pytest.approx(4.0, rel=0.01)


def test_the_errors_are_those_of_the_coefficients_with_the_time_per_request() -> None:
    measured, windows = measured_on(SLOW, async_scheduling=False)
    fit = fit_iteration(measured.points)
    slower = [window._replace(ms=window.ms + 8 * 2.0) for window in windows]
    fitted = with_admission(fit, slower).fitted
    assert fitted.iteration.admission_ms == pytest.approx(6.0, rel=0.01)
    mean, largest = errors(fitted.iteration, split(fitted.fit.points)[0])
    assert fitted.fit.error_mean == pytest.approx(mean, rel=0.05)
    assert fitted.fit.error_max == pytest.approx(largest, rel=0.05)
    assert fitted.fit.error_mean > fit.fit.error_mean
    assert fitted.fit.unidentified == fit.fit.unidentified


def fitted_with(each_ms: list[float]) -> tuple[Fitted, str | None]:
    """Add windows that leave these times per request unexplained, on an engine half as fast as the fit."""
    quiet_ms = TRUTH.ms(tokens=8, context_tokens=800, sequences=8, mixed=False)
    one = replace(fit_iteration([FitPoint(1, 100, 0, 0, 0, 10.0)]), iteration=TRUTH)
    computed_ms = 8 * TRUTH.ms(
        tokens=24, context_tokens=800, sequences=9, pairs=16 * 8, admitted=1, mixed=True
    )
    windows = [
        WINDOW._replace(ms=2 * (12 * quiet_ms + computed_ms) + 8 * ms, quiet_ms=2 * quiet_ms)
        for ms in each_ms
    ]
    added = with_admission(one, windows)
    return added.fitted, added.line


def test_drift_since_the_fit_is_no_time_per_request() -> None:
    fitted, line = fitted_with([0.0, 0.001, -0.001])
    assert (fitted.iteration, line) == (TRUTH, None)
    fitted, line = fitted_with([3.0, 3.1, 2.9])
    assert line is None
    assert fitted.iteration.admission_ms == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(
    ("each_ms", "why"),
    [([3.0, 3.0], "2 windows"), ([-6.0, 0.5, 9.0, 2.0, -4.0], "0.5 ms, give or take"), ([-3.0] * 3, "-3 ms")],
    ids=["too few", "scattered", "negative"],
)
def test_a_time_that_the_windows_do_not_tell_is_said_and_left_out(each_ms: list[float], why: str) -> None:
    fitted, line = fitted_with(each_ms)
    assert fitted.iteration.admission_ms == 0
    assert line is not None
    assert line.startswith("not identified: time per request beyond its iteration (")
    assert why in line


@pytest.mark.parametrize("seqs_max", [2, 4, 8, 256])
def test_short_requests_find_slots_beside_the_decodes(seqs_max: int) -> None:
    capacity = EngineCapacity(
        kv_tokens=LARGE.kv_tokens, block_tokens=16, seqs_max=seqs_max, context_tokens=8192
    )
    assert 1 <= window_cell(capacity).decodes < seqs_max
