"""Statistics of the benchmark of drawn scenarios: cells, and what they amount to together.

A cell is a scenario at a load; its figures are means over seeds. All arms of a cell see the same requests, so
differences are paired, request by request. Their intervals are from a bootstrap: seeds are drawn with
replacement, then blocks of successive requests, since requests that wait in one queue share their fate.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.motion.runs import Run

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]

BLOCKS: Final = 20
"""Blocks of successive requests of a run."""

RESAMPLES: Final = 1000

QUANTILES: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Results of a scenario at a load; attainment and differences in percent points.

    Attributes:
        attainment: Mean over seeds, by arm.
        best: Rival with the highest mean.
        difference: Subject less best rival.
        interval: 95 % interval of the difference.
        spread: Standard deviation of the subject between seeds; None with one seed.
        runs: Runs by arm, in the order of their seeds.
    """

    scenario: str
    load: float
    attainment: Mapping[str, float]
    best: str
    difference: float
    interval: Interval
    spread: float | None
    runs: Mapping[str, Sequence[Run]]

    def ratio(self, subject: str, other: str, figure: str) -> float | None:
        """Return the mean of a figure under the subject over that under another arm, if there are both."""
        if other not in self.runs:
            return None
        ours, theirs = (_mean(self.runs[arm], figure) for arm in (subject, other))
        return ours / theirs if ours is not None and theirs else None


def cells(runs: Iterable[Run], subject: str, rivals: Sequence[str]) -> list[Cell]:
    """Return the cells with runs of the subject and of all rivals with all seeds of the subject."""
    grouped: dict[tuple[str, float], dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for one in runs:
        grouped[one.scenario, one.load][one.arm][one.seed] = one
    found = []
    for (scenario, load), arms in sorted(grouped.items()):
        seeds = sorted(arms[subject])
        complete = {arm: [of[seed] for seed in seeds] for arm, of in arms.items() if set(of) >= set(seeds)}
        if seeds and all(rival in complete for rival in rivals):
            found.append(_cell(scenario, load, complete, subject, rivals))
    return found


def _cell(
    scenario: str, load: float, runs: Mapping[str, Sequence[Run]], subject: str, rivals: Sequence[str]
) -> Cell:
    means = {arm: 100 * statistics.fmean(_share(one) for one in ones) for arm, ones in runs.items()}
    best = max(rivals, key=lambda rival: means[rival])
    ours = [100 * _share(one) for one in runs[subject]]
    return Cell(
        scenario=scenario,
        load=load,
        attainment=means,
        best=best,
        difference=means[subject] - means[best],
        interval=paired_interval(runs[subject], runs[best]),
        spread=statistics.stdev(ours) if len(ours) > 1 else None,
        runs=runs,
    )


def _share(one: Run) -> float:
    return float(one.bits.mean())


def paired_interval(ours: Sequence[Run], theirs: Sequence[Run]) -> Interval:
    """Return the 95 % interval of the mean difference in attainment, percent points.

    Args:
        ours: Runs of one arm, by seed.
        theirs: Runs of another, with the same seeds and requests.
    """
    rng = np.random.default_rng(0)
    differences = [_blocks(a, b) for a, b in zip(ours, theirs, strict=True)]
    of_seed = np.stack([_resampled(rng, *each) for each in differences])
    picked = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    means = of_seed[picked, np.arange(RESAMPLES)[:, None]].mean(axis=1)
    low, high = np.quantile(means, QUANTILES)
    return 100 * float(low), 100 * float(high)


def _blocks(ours: Run, theirs: Run) -> tuple[FloatArray, FloatArray]:
    """Return the sums of the differences over blocks of requests, and the sizes of the blocks."""
    if ours.requests != theirs.requests or ours.digest != theirs.digest:
        raise ValueError(f"runs of {ours.scenario} have other requests under {ours.arm} and {theirs.arm}")
    parts = np.array_split(ours.bits.astype(np.float64) - theirs.bits, min(BLOCKS, ours.requests))
    return np.array([part.sum() for part in parts]), np.array([float(len(part)) for part in parts])


def _resampled(rng: np.random.Generator, sums: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return the mean difference of each resample of a run's blocks, shape (RESAMPLES,)."""
    picked = rng.integers(len(sums), size=(RESAMPLES, len(sums)))
    return np.asarray(sums[picked].sum(axis=1) / sizes[picked].sum(axis=1))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % bootstrap interval of a mean over cells."""
    rng = np.random.default_rng(0)
    given = np.array(values)
    means = given[rng.integers(len(given), size=(RESAMPLES, len(given)))].mean(axis=1)
    low, high = np.quantile(means, QUANTILES)
    return float(low), float(high)


def _mean(runs: Sequence[Run], figure: str) -> float | None:
    values = [value for one in runs if (value := getattr(one, figure)) is not None]
    return statistics.fmean(values) if values else None
