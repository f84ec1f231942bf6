"""Division of a class by the length of its prompts (QLM, algorithm 1): where, and whether it is worth it.

Clustering in one dimension, of counts on a logarithmic grid. Requests are of several kinds where their
lengths have several modes: a *valley* is an octave with few requests between two octaves with many. A valley
is worth a division if that frees most requests from waits that few others cause. In a queue in order of
arrival the mean wait is proportional to the second moment of the service times (Pollaczek and Khinchine), so
the gain of a threshold is

    share of the requests below it  -  share of the second moment of service times below it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from qlm.domain.formats.clusters import THRESHOLDS_MAX, Thresholds
from qlm.domain.length_histogram import LENGTH_BINS, LENGTH_EDGES
from qlm.rct_estimator.length_predictive import FloatArray

OCTAVE: Final = 4
"""Bins of an octave, from 8 tokens on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """Conditions of a threshold.

    Attributes:
        requests: Least number of requests in the best octave on either side.
        valley: Largest number in the octave around the threshold, as a share of the smaller of these two.
        gain: Least gain.
        ratio: Least ratio of the mean service times above and below the threshold.
    """

    requests: float
    valley: float
    gain: float
    ratio: float


BEGIN: Final = Criterion(requests=8.0, valley=0.2, gain=0.8, ratio=32.0)
"""Of a new threshold."""

STAY: Final = Criterion(requests=0.5, valley=0.6, gain=0.5, ratio=12.0)
"""Of a threshold in use: weaker, so that lengths that drift or become rare do not divide anew each time."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptLengths:
    """Prompt lengths of a class.

    Attributes:
        weights: Number of requests in each bin of `LENGTH_EDGES`, older ones weighing less.
        service_s: Service time of a request with such a prompt: seconds of an instance with a full batch.
    """

    weights: FloatArray
    service_s: FloatArray

    def between(self, low: int, high: int) -> "PromptLengths":
        """Return those of bins `low` to `high` - 1."""
        inside = np.zeros(LENGTH_BINS)
        inside[low:high] = self.weights[low:high]
        return PromptLengths(inside, self.service_s)

    def gain(self, at: int) -> float:
        """Return the gain of a threshold below bin `at`."""
        squares = self.weights * self.service_s**2
        return _share(self.weights, at) - _share(squares, at)

    def ratio(self, at: int) -> float:
        """Return the ratio of the mean service times above and below bin `at`."""
        requests, seconds = _share(self.weights, at), _share(self.weights * self.service_s, at)
        if not 0 < requests < 1 or not seconds:
            return 1.0
        return (1 - seconds) / (1 - requests) * requests / seconds


def new_threshold(lengths: PromptLengths, standing: Thresholds) -> int | None:
    """Return the threshold that gains most beside those in use; None without one worth it, or room for it."""
    if len(standing) >= THRESHOLDS_MAX:
        return None
    total, best, best_gain = lengths.weights.sum(), None, BEGIN.gain
    for low, high in _segments(standing):
        inside = lengths.between(low, high)
        share = inside.weights.sum() / total if total else 0.0
        for at in _valleys(inside.weights):
            gain = share * inside.gain(at)
            if gain >= best_gain and inside.ratio(at) >= BEGIN.ratio:
                best, best_gain = LENGTH_EDGES[at], gain
    return best


def is_worth_keeping(lengths: PromptLengths, threshold: int, standing: Thresholds) -> bool:
    """Return whether a threshold in use still divides requests of two kinds."""
    at = LENGTH_EDGES.index(threshold)
    others = tuple(each for each in standing if each != threshold)
    low, high = next((low, high) for low, high in _segments(others) if low < at < high)
    inside = lengths.between(low, high)
    total = lengths.weights.sum()
    share = inside.weights.sum() / total if total else 0.0
    middle, modes = _octaves(inside.weights)
    deep = modes[at] >= STAY.requests and middle[at] <= STAY.valley * modes[at]
    return bool(deep) and share * inside.gain(at) >= STAY.gain and inside.ratio(at) >= STAY.ratio


def has_valley(weights: FloatArray) -> bool:
    """Return whether lengths have two modes; cheap, and mostly they have not."""
    return next(_valleys(weights), None) is not None


def _share(values: FloatArray, at: int) -> float:
    total = values.sum()
    return float(values[:at].sum() / total) if total else 0.0


def _segments(thresholds: Thresholds) -> Iterator[tuple[int, int]]:
    bounds = [0, *(LENGTH_EDGES.index(each) for each in thresholds), LENGTH_BINS]
    yield from pairwise(bounds)


def _octaves(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return requests in the octave around each edge, and in the lesser of the best octaves at its sides."""
    padded = np.pad(weights, 3 * OCTAVE // 2)
    octaves = np.convolve(padded, np.ones(OCTAVE), "valid")  # octaves[j]: around edge j - OCTAVE
    left, right = np.maximum.accumulate(octaves), np.maximum.accumulate(octaves[::-1])[::-1]
    edges = LENGTH_BINS + 1
    return octaves[OCTAVE:][:edges], np.minimum(left[:edges], right[2 * OCTAVE :][:edges])


def _valleys(weights: FloatArray) -> Iterator[int]:
    """Yield the middle of the emptiest place of each valley, as an index of edges."""
    middle, modes = _octaves(weights)
    deep = np.flatnonzero((modes >= BEGIN.requests) & (middle <= BEGIN.valley * modes))
    for run in np.split(deep, np.flatnonzero(np.diff(deep) > 1) + 1):
        if len(run):
            emptiest = run[middle[run] == middle[run].min()]
            yield int(emptiest[len(emptiest) // 2])
