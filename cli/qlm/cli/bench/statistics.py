"""Percentiles that bear infinite values, and bootstrap intervals over requests."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from qlm.cli.bench.record import FloatArray

RESAMPLES: Final = 1000
"""Resamples of an interval; the ends then vary by a tenth of its width from seed to seed."""

CONFIDENCE: Final = 0.95

_VALUES_MAX: Final = 2_000_000
"""Values drawn at a time, which bounds the memory."""

Columns = TypeVar("Columns", bound=tuple[Any, ...])
Indices = npt.NDArray[np.int64]
Statistic = Callable[[Columns], FloatArray]
"""A figure of columns, computed along their last axis."""


def percentile(values: FloatArray, percent: float) -> FloatArray:
    """Return the least value that `percent` of all do not exceed (nearest rank), along the last axis.

    It does not interpolate, so that infinite values, those of failed requests, stay what they are.
    """
    rank = max(0, math.ceil(percent / 100 * values.shape[-1]) - 1)
    return np.asarray(np.partition(values, rank, axis=-1)[..., rank])


def resampled(columns: Columns, indices: Indices) -> Columns:
    """Return the columns at some indices; single numbers stay."""
    picked = [each[indices] if isinstance(each, np.ndarray) else each for each in columns]
    return type(columns)(*picked)


def draws(
    rng: np.random.Generator, requests: int, resamples: int = RESAMPLES, *, beside: int = 0
) -> Iterator[Indices]:
    """Yield indices of resamples with replacement, shape (some, requests), `resamples` rows in all.

    Args:
        rng: Source of the resamples.
        requests: Number of requests to draw from.
        resamples: Number of rows.
        beside: Requests of another result that is drawn row by row with this one: the parts of both then
            have the same number of rows.
    """
    at_once = max(1, _VALUES_MAX // max(1, requests, beside))
    for begin in range(0, resamples, at_once):
        yield rng.integers(0, requests, (min(at_once, resamples - begin), requests))


def interval(values: FloatArray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the percentile interval of the figures of resamples."""
    tail = (1 - confidence) / 2 * 100
    return float(percentile(values, tail)), float(percentile(values, 100 - tail))


def intervals(
    columns: Columns,
    requests: int,
    statistics: dict[str, Statistic[Columns]],
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap interval of each statistic over requests.

    Args:
        columns: Arrays of shape (requests,), and single numbers, which are not drawn.
        requests: Their length.
        statistics: The figures.
        rng: Source of the resamples.
        resamples: Their number.
    """
    found: dict[str, list[FloatArray]] = {name: [] for name in statistics}
    for indices in draws(rng, requests, resamples):
        drawn = resampled(columns, indices)
        for name, statistic in statistics.items():
            found[name].append(np.broadcast_to(statistic(drawn), len(indices)))
    return {name: interval(np.concatenate(parts)) for name, parts in found.items()}
