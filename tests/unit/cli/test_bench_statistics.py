"""Percentiles that bear infinite values, and bootstrap intervals."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.cli.bench.record import FloatArray
from qlm.cli.bench.statistics import draws, interval, intervals, percentile, resampled

NEVER = float("inf")


class One(NamedTuple):
    values: FloatArray
    span_s: float


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 1.0), (26, 2.0), (50, 2.0), (75, 3.0), (76, NEVER), (100, NEVER)]
)
def test_a_percentile_is_a_value_of_the_sample_even_beside_infinite_ones(
    percent: float, expected: float
) -> None:
    assert percentile(np.array([NEVER, 3.0, 1.0, 2.0]), percent) == expected


@given(st.lists(st.floats(0, 1e6) | st.just(NEVER), min_size=1, max_size=50), st.floats(0, 100))
def test_at_least_the_percentage_of_values_are_within_the_percentile_and_none_less_would_do(
    values: list[float], percent: float
) -> None:
    found = float(percentile(np.array(values), percent))
    assert sum(each <= found for each in values) >= percent / 100 * len(values) - 1e-9
    if percent > 0:
        assert sum(each < found for each in values) < percent / 100 * len(values) + 1e-9


def test_percentiles_are_taken_along_the_last_axis() -> None:
    assert percentile(np.array([[1.0, 2.0], [4.0, 3.0]]), 50).tolist() == [1.0, 3.0]


def test_a_resample_draws_whole_requests_and_keeps_single_numbers() -> None:
    drawn = resampled(One(np.array([1.0, 2.0, 3.0]), 7.0), np.array([[0, 0, 2]]))
    assert drawn.values.tolist() == [[1.0, 1.0, 3.0]]
    assert drawn.span_s == 7.0


def test_many_requests_are_drawn_in_parts_of_bounded_size() -> None:
    parts = list(draws(np.random.default_rng(1), 900_000, 5))
    assert [len(each) for each in parts] == [2, 2, 1]


@pytest.mark.parametrize("sizes", [(4_000, 900_000), (2500, 1000), (10, 10)])
def test_results_of_different_sizes_are_drawn_row_by_row(sizes: tuple[int, int]) -> None:
    one, two = (
        draws(np.random.default_rng(1), size, 5, beside=other) for size, other in (sizes, reversed(sizes))
    )
    rows = [(len(a), len(b)) for a, b in zip(one, two, strict=True)]
    assert all(a == b for a, b in rows)
    assert sum(a for a, _ in rows) == 5


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        columns = One(rng.normal(3.0, 1.0, 60), 1.0)
        found = intervals(columns, 60, {"mean": lambda one: np.asarray(one.values.mean(-1))}, rng, 300)
        covered += found["mean"][0] <= 3.0 <= found["mean"][1]
    # A binomial of 200 and 0.93 (the bootstrap of 60 values is a little narrow) is within these ends.
    assert 172 <= covered <= 198


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert interval(np.full(100, 2.5)) == (2.5, 2.5)
