import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fit import errors, fit_coefficients, nnls
from qlm.rct_estimator.profiles.iteration import Coefficients
from qlm.rct_estimator.profiles.points import FitPoint

GRID = [(b, t) for b in (1, 4, 16, 64) for t in (128, 512, 2048)]


def timed(truth: Coefficients, grid: list[tuple[int, int]]) -> list[FitPoint]:
    return [FitPoint(b, t, truth.ms(b, t)) for b, t in grid]


def brute_force(matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> float:
    """Try every set of coefficients that may be above zero; return the least squared error."""
    best = float(target @ target)
    for size in range(1, matrix.shape[1] + 1):
        for chosen in itertools.combinations(range(matrix.shape[1]), size):
            part = matrix[:, chosen]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(((part @ x - target) ** 2).sum()))
    return best


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.floats(-4, 4), min_size=5, max_size=5),
)
def test_nnls_finds_what_brute_force_finds(seed: int, rows: int, columns: int, sizes: list[float]) -> None:
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(rows, columns)) * 10.0 ** np.array(sizes[:columns])
    target = random.normal(size=rows)
    x = nnls(matrix, target)
    assert (x >= 0).all()
    assert float(((matrix @ x - target) ** 2).sum()) == pytest.approx(brute_force(matrix, target), abs=1e-8)


def test_nnls_binds_a_coefficient_that_least_squares_would_make_negative() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    target = np.array([3.0, 2.0, 1.0])
    assert np.linalg.lstsq(matrix, target, rcond=None)[0] == pytest.approx([4, -1])
    assert nnls(matrix, target) == pytest.approx([2, 0])


def test_nnls_takes_columns_that_are_equal_or_empty() -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    assert matrix @ nnls(matrix, np.array([2.0, 4.0])) == pytest.approx([2, 4])


coefficient = st.one_of(st.just(0.0), st.floats(1e-5, 1.0))


@given(coefficient, coefficient, coefficient, st.floats(0.1, 100))
def test_exact_points_give_their_coefficients_back(
    alpha: float, beta: float, gamma: float, delta: float
) -> None:
    truth = Coefficients(alpha=alpha, beta=beta, gamma=gamma, delta=delta)
    fit = fit_coefficients(timed(truth, GRID))
    assert fit.error_max < 0.02
    if delta > 0.02 * min(p.ms for p in timed(truth, GRID)):
        assert fit.error_max < 1e-6
        assert fit.r2 == pytest.approx(1)
    assert fit.unidentified == ()


@given(st.integers(0, 2**32 - 1))
def test_noise_of_two_percent_moves_predictions_by_hardly_more(seed: int) -> None:
    truth = Coefficients(alpha=0.0001, beta=0.03, gamma=0.0, delta=12.0)
    random = np.random.default_rng(seed)
    noisy = [FitPoint(p.batch, p.tokens, p.ms * random.uniform(0.98, 1.02)) for p in timed(truth, GRID)]
    assert errors(fit_coefficients(noisy).coefficients, timed(truth, GRID))[1] < 0.03


@pytest.mark.parametrize(
    ("grid", "unidentified"),
    [
        ([(1, 100), (1, 200), (1, 300)], ("beta", "gamma")),
        ([(1, 100), (2, 100), (4, 100)], ("beta", "gamma")),
        ([(1, 100), (2, 100), (4, 200)], ("gamma",)),
        ([(3, 100)], ("alpha", "beta", "gamma")),
        ([(3, 100), (3, 100), (3, 100), (3, 100)], ("alpha", "beta", "gamma")),
        ([(1, 100), (2, 50), (4, 25)], ("alpha",)),
        ([(1, 100), (2, 100), (1, 200), (2, 200)], ()),
    ],
)
def test_coefficients_that_points_cannot_tell_apart_are_named_and_zero(
    grid: list[tuple[int, int]], unidentified: tuple[str, ...]
) -> None:
    points = [FitPoint(b, t, 5 + 0.1 * b * t) for b, t in grid]
    fit = fit_coefficients(points)
    assert fit.unidentified == unidentified
    assert all(getattr(fit.coefficients, name) == 0 for name in unidentified)


def test_one_prompt_per_iteration_is_fitted_as_time_per_token_of_the_batch() -> None:
    points = [FitPoint(1, t, 5 + 0.1 * t) for t in (100, 200, 400)]
    assert fit_coefficients(points).coefficients.ms(4, 100) == pytest.approx(45)


def test_an_iteration_without_work_still_takes_time() -> None:
    fit = fit_coefficients([FitPoint(b, t, 0.1 * b * t) for b, t in GRID])
    assert fit.coefficients.delta == pytest.approx(0.01 * 12.8)


def test_quality_is_what_the_points_say() -> None:
    flat = fit_coefficients([FitPoint(1, 1, 9), FitPoint(1, 1, 11)])
    assert flat.r2 == pytest.approx(0, abs=0.05)
    assert flat.error_max == pytest.approx(1 - flat.coefficients.delta / 11)
    assert flat.error_mean == pytest.approx(0.1, abs=0.001)
    assert fit_coefficients([FitPoint(1, 1, 9)]).r2 == 1


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("place", range(3))
def test_a_point_that_is_not_positive_and_finite_is_refused(bad: float, place: int) -> None:
    values = [1.0, 2.0, 3.0]
    values[place] = bad
    with pytest.raises(InvalidValueError, match=rf"points.{FitPoint._fields[place]} is \[.*positive"):
        fit_coefficients([FitPoint(1, 1, 1), FitPoint(*values)])


def test_no_points_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one point"):
        fit_coefficients([])
