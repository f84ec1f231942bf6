"""Comparison of two results: the difference of each figure, with an interval.

Runs of the same schedule are paired: request by request they differ in the server alone, and each resample
draws the same requests of both. Other runs are drawn independently, which gives wider intervals.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from qlm.cli.bench.rating import FIGURES, rate
from qlm.cli.bench.record import FloatArray, Run
from qlm.cli.bench.statistics import RESAMPLES, draws, interval, resampled
from qlm.domain.streaming.goodput import HALF_LIFE_S
from qlm.domain.streaming.reader import Reader

_SAME_S: Final = 1e-6
"""Largest difference of two scheduled times that are the same."""


class Difference(NamedTuple):
    """A figure of two results.

    Attributes:
        first: Of the first.
        second: Of the second.
        difference: Second minus first; 0 if both are infinite.
        low: Lower end of its 95 % interval.
        high: Upper end.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0


def paired(first: Sequence[Run], second: Sequence[Run]) -> bool:
    """Return whether two results have the same runs of the same schedule."""
    return len(first) == len(second) and all(map(_same_schedule, first, second))


def differences(
    first: Sequence[Run],
    second: Sequence[Run],
    reader: Reader,
    half_life_s: float = HALF_LIFE_S,
    resamples: int = RESAMPLES,
) -> dict[str, Difference]:
    """Compare two results by the figures of a reader, second minus first."""
    rated = rate(first, reader, half_life_s), rate(second, reader, half_life_s)
    sizes = [len(each.idle_s) for each in rated]
    rng = np.random.default_rng(1)
    # Equal generators draw the same requests.
    other = np.random.default_rng(1) if paired(first, second) else np.random.default_rng(2)
    found: dict[str, list[FloatArray]] = {name: [] for name in FIGURES}
    drawn = (
        draws(rng, sizes[0], resamples, beside=sizes[1]),
        draws(other, sizes[1], resamples, beside=sizes[0]),
    )
    for one, two in zip(*drawn, strict=True):
        columns = resampled(rated[0], one), resampled(rated[1], two)
        for name, figure in FIGURES.items():
            found[name].append(_minus(figure(columns[1]), figure(columns[0])))
    result = {}
    for name, figure in FIGURES.items():
        values = figure(rated[0]), figure(rated[1])
        low, high = interval(np.concatenate(found[name]))
        change = float(_minus(values[1], values[0]))
        result[name] = Difference(float(values[0]), float(values[1]), change, low, high)
    return result


def _minus(second: FloatArray, first: FloatArray) -> FloatArray:
    # Two infinite figures are equal; their difference would not be a number.
    equal = second == first
    return np.where(equal, 0.0, np.where(equal, 0.0, second) - np.where(equal, 0.0, first))


def _same_schedule(first: Run, second: Run) -> bool:
    if len(first.requests) != len(second.requests):
        return False
    begins = first.requests[0].scheduled_s, second.requests[0].scheduled_s
    return all(
        abs((a.scheduled_s - begins[0]) - (b.scheduled_s - begins[1])) <= _SAME_S
        and a.asked_tokens == b.asked_tokens
        for a, b in zip(first.requests, second.requests, strict=True)
    )
