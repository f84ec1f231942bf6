"""The fit of an iteration: known engines are recovered, and what points do not identify is named."""

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fit import Physics, fit_iteration, split
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.least_error import least_absolute
from qlm.rct_estimator.profiles.points import FitPoint, errors

Row = tuple[float, float, float, float, float]

PROMPTS: list[Row] = [
    (batch, new, 0, 0, 0)
    for batch in (1, 4, 16, 64)
    for new in (16, 32, 64, 128, 256, 512, 1024, 2048)
    if batch * new <= 2048
]
CHUNKS: list[Row] = [(1, 2048, before, 0, 0) for before in (2048, 4096, 6144)]
DECODES: list[Row] = [(0, 0, 0, b, c) for b in (1, 2, 4, 8, 16, 32, 64, 128, 256) for c in (128, 512, 1536)]
MIXED: list[Row] = [(1, n, 0, d, c) for n in (128, 1024) for d in (8, 32, 128) for c in (128, 1024)]
GRID = PROMPTS + CHUNKS + DECODES + MIXED

KNOWN = IterationTime(
    host_ms=1.5,
    linear_ms=((1, 9.0), (190, 9.6), (2048, 110.0)),
    kv_ms=8e-5,
    kv_mixed_ms=1.1e-4,
    sequence_ms=0.02,
    square_ms=2e-6,
    admission_ms=0.8,
)


def timed(truth: IterationTime, grid: Iterable[Row], noise: float = 0.0, seed: int = 0) -> list[FitPoint]:
    drawn = random.Random(seed)
    points = [FitPoint(*row, 1.0) for row in grid]
    return [
        p._replace(ms=p.predicted_ms(truth) * (1 + drawn.uniform(-noise, noise) if noise else 1.0))
        for p in points
    ]


@st.composite
def engines(draw: st.DrawFn) -> IterationTime:
    """Engines as hardware has them: computing overtakes reading the weights at 40 to 400 tokens."""
    floor, kink = draw(st.floats(3, 60)), draw(st.floats(40, 400))
    rise = draw(st.floats(0, 0.3))
    slope = floor / kink * draw(st.floats(0.8, 1.5))
    kv = floor * draw(st.floats(2e-6, 2e-5))
    return IterationTime(
        host_ms=draw(st.floats(0, 3)),
        linear_ms=(
            (1, floor),
            (kink, floor * (1 + rise)),
            (2048, floor * (1 + rise) + slope * (2048 - kink)),
        ),
        kv_ms=kv,
        kv_mixed_ms=kv * draw(st.floats(1, 2)),
        sequence_ms=floor * draw(st.floats(0.0005, 0.01)),
        square_ms=slope * draw(st.floats(1e-5, 1e-4)),
        admission_ms=floor * draw(st.floats(0, 0.3)),
    )


def test_a_known_engine_is_recovered_coefficient_by_coefficient() -> None:
    fitted = fit_iteration(timed(KNOWN, GRID))
    found = fitted.iteration
    for name in ("kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"):
        assert getattr(found, name) == pytest.approx(getattr(KNOWN, name), rel=0.01), name
    assert [tokens for tokens, _ms in found.linear_ms] == pytest.approx([1, 190, 2048], rel=0.01)
    # The time on the host is in every iteration, so it counts in the table.
    assert [ms for _tokens, ms in found.linear_ms] == pytest.approx([10.5, 11.1, 111.5], rel=0.01)
    assert fitted.fit.unidentified == ("host_ms",)
    assert fitted.fit.held_out_max is not None
    assert fitted.fit.held_out_max < 0.001


@settings(max_examples=25, deadline=None)
@given(engines())
def test_exact_points_give_any_engine_back_within_1_percent(truth: IterationTime) -> None:
    fitted = fit_iteration(timed(truth, GRID))
    assert errors(fitted.iteration, timed(truth, GRID))[1] < 0.01
    unseen = [(3, 300, 100, 0, 0), (0, 0, 0, 200, 700), (1, 600, 0, 50, 400), (1, 200, 0, 0, 0)]
    assert errors(fitted.iteration, timed(truth, unseen))[1] < 0.01


@settings(max_examples=25, deadline=None)
@given(engines(), st.integers(0, 2**32 - 1))
def test_noise_of_two_percent_moves_predictions_by_hardly_more(truth: IterationTime, seed: int) -> None:
    noisy = timed(truth, GRID, noise=0.02, seed=seed)
    fitted = fit_iteration(noisy)
    mean, largest = errors(fitted.iteration, timed(truth, GRID))
    assert mean < 0.01
    assert largest < 0.04


def test_disturbed_iterations_hardly_move_the_fit() -> None:
    points = timed(KNOWN, GRID)
    for number in (3, 17, 30, 41):
        points[number] = points[number]._replace(ms=2 * points[number].ms)
    found = fit_iteration(points).iteration
    assert errors(found, timed(KNOWN, GRID))[1] < 0.01


@pytest.mark.parametrize(
    ("grid", "named"),
    [
        (PROMPTS + CHUNKS + DECODES, {"kv_mixed_ms"}),
        (
            [row for row in PROMPTS if row[0] == 1],
            {"kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"},
        ),
        (
            [row for row in DECODES if row[3] == 8],
            {"kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"},
        ),
        (DECODES, {"kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"}),
        (
            [row for row in DECODES if row[4] == 512],
            {"kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"},
        ),
        (
            [(1, 512, 0, 0, 0), (0, 0, 0, 8, 128), (0, 0, 0, 8, 512)],
            {"kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"},
        ),
        ([(3, 100, 0, 0, 0)], {"kv_ms", "kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"}),
        (GRID, set()),
    ],
)
def test_what_the_points_do_not_identify_is_named(grid: list[Row], named: set[str]) -> None:
    fitted = fit_iteration(timed(KNOWN, grid))
    assert set(fitted.fit.unidentified) == {"host_ms", *named}
    assert fitted.fit.error_max < 0.01
    assert (fitted.iteration.kv_mixed_ms is None) == ("kv_mixed_ms" in named)


def test_where_iterations_with_both_leave_kv_mixed_open_all_is_fitted_as_if_it_were_kv() -> None:
    truth = replace(KNOWN, kv_mixed_ms=None)
    grid: list[Row] = [(1, n, 0, 32, 2000) for n in (128, 1024) for _ in range(3)]
    fitted = fit_iteration(timed(truth, DECODES + grid))
    assert "kv_mixed_ms" in fitted.fit.unidentified
    assert fitted.fit.error_max < 0.01


def test_memory_bandwidth_bounds_the_time_per_token_of_context_and_the_floor() -> None:
    # 131072 bytes at 2 TB/s: 6.55e-5 ms, at half of it 1.31e-4 ms.
    physics = Physics.of(kv_bytes_per_token=131072, weights_bytes=16e9, bandwidth_bytes_per_s=2e12)
    inside = fit_iteration(timed(KNOWN, GRID), physics)
    assert inside.at_limit == ()
    assert inside.iteration.kv_ms == pytest.approx(KNOWN.kv_ms, rel=0.01)
    slow = fit_iteration(timed(replace(KNOWN, kv_ms=1e-3), GRID), physics)
    assert slow.iteration.kv_ms == pytest.approx(1.31e-4, rel=0.01)
    assert "kv_ms" in slow.at_limit
    blind = fit_iteration(timed(KNOWN, [(1, n, 0, 0, 0) for n in (600, 1200, 2400)]), physics)
    assert blind.iteration.linear(1) >= 8.0
    assert blind.iteration.kv_ms == pytest.approx(6.55e-5 / 0.75, rel=0.01)
    assert "kv_ms" in blind.fit.unidentified


def test_an_iteration_shorter_than_reading_all_weights_shows_that_not_all_are_read() -> None:
    physics = Physics(weights_read_ms=1000.0)
    found = fit_iteration(timed(KNOWN, GRID), physics).iteration
    assert errors(found, timed(KNOWN, GRID))[1] < 0.01


def test_a_fifth_of_each_kind_is_held_out() -> None:
    points = timed(KNOWN, GRID)
    kept, held_out = split(points)
    assert sorted(kept + held_out) == sorted(points)
    assert len(held_out) == pytest.approx(len(points) / 5, abs=2)
    assert any(p.prompts and p.decodes for p in held_out)
    assert sorted(split(points[::-1])[1]) == sorted(held_out)
    assert split(points[:4]) == (points[:4], [])


def test_an_iteration_without_work_still_takes_time() -> None:
    found = fit_iteration([FitPoint(1, n, 0, 0, 0, 0.1 * n) for n in (16, 64, 256, 1024)]).iteration
    assert found.linear(1) > 0


def test_the_stated_errors_are_those_of_the_coefficients() -> None:
    points = timed(KNOWN, GRID, noise=0.05, seed=3)
    fitted = fit_iteration(points)
    kept, held_out = split(points)
    assert (fitted.fit.error_mean, fitted.fit.error_max) == pytest.approx(
        errors(fitted.iteration, kept), rel=0.06
    )
    assert (fitted.fit.held_out_mean, fitted.fit.held_out_max) == pytest.approx(
        errors(fitted.iteration, held_out), rel=0.06
    )


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_a_duration_that_is_not_positive_and_finite_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValueError, match=r"points\.1\.ms is .*positive"):
        fit_iteration([FitPoint(1, 1, 0, 0, 0, 1), FitPoint(1, 1, 0, 0, 0, bad)])


def test_no_points_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one"):
        fit_iteration([])


@given(st.integers(0, 2**32 - 1), st.integers(1, 15), st.integers(1, 4))
def test_no_other_coefficients_have_less_error(seed: int, rows: int, columns: int) -> None:
    drawn = np.random.default_rng(seed)
    matrix, target = (
        drawn.uniform(0, 1, (rows, columns)) * 10.0 ** drawn.uniform(-4, 4, columns),
        np.ones(rows),
    )
    low = np.zeros(columns)
    high = np.where(drawn.uniform(size=columns) < 0.5, np.inf, 1.0)
    x, error = least_absolute(matrix, target, low, high)
    assert ((x >= low) & (x <= high)).all()
    assert error == pytest.approx(float(np.abs(matrix @ x - target).sum()))
    for _ in range(50):
        other = np.clip(x * drawn.lognormal(0, 0.5, columns) + drawn.exponential(0.01, columns), low, high)
        assert float(np.abs(matrix @ other - target).sum()) >= error - 1e-7
