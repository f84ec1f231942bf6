"""Drift of a series by a robust slope."""

import itertools
import statistics
from collections.abc import Sequence


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of Theil and Sen: the median over the slopes between all pairs of points."""
    points = sorted(zip(times_s, values, strict=True))
    slopes = [(y - x) / (t - s) for (s, x), (t, y) in itertools.combinations(points, 2) if t > s]
    return statistics.median(slopes) if slopes else 0.0


def floors(
    times_s: Sequence[float], values: Sequence[float], span_s: float
) -> tuple[list[float], list[float]]:
    """Return the lowest value of each whole span of time: what stays of a series that grows and is cut."""
    spans: dict[int, list[float]] = {}
    for time_s, value in zip(times_s, values, strict=True):
        spans.setdefault(int((time_s - times_s[0]) // span_s), []).append(value)
    if len(spans) > 1:
        spans.popitem()  # cut off by the end of the measurement
    return [times_s[0] + number * span_s for number in spans], [min(each) for each in spans.values()]


def drift(times_s: Sequence[float], values: Sequence[float]) -> float:
    """Return the change over the whole time by that slope, as a share of the median value."""
    level = statistics.median(values)
    change = slope(times_s, values) * (max(times_s) - min(times_s))
    return change / level if level else change
