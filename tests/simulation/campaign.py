"""Many seeds: on several cores, with a line of progress."""

import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from simulation.records import SeedFile, Summary
from simulation.trial import run_trial

COMMAND: Final = "python -m simulation"
_PROGRESS_S: Final = 1.0
_PROGRESS_QUIET_S: Final = 60.0
"""Time between two lines of progress: on a terminal, and elsewhere."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The seeds to run, and how.

    Attributes:
        seeds: All seeds.
        kinds: The kinds of faults to draw; None for all.
        processes: Number of seeds at once.
    """

    seeds: Sequence[int]
    kinds: tuple[str, ...] | None
    processes: int


def summaries(campaign: Campaign, file: SeedFile) -> Iterator[Summary]:
    """Run the seeds that the file does not have, add each to it, and yield what came of it."""
    left = [seed for seed in campaign.seeds if seed not in file.seeds]
    progress = _Progress(len(left), len(campaign.seeds))
    for summary in _ran(left, campaign):
        file.add(summary)
        progress.advance(file.total.failed)
        yield summary


def run_seed(seed: int, kinds: tuple[str, ...] | None) -> Summary:
    """Run one seed; a trial that cannot be run to its end is a violation too."""
    began_s = time.process_time()
    try:
        trial = run_trial(seed, kinds=kinds)
    except Exception as error:
        broken = f"the trial failed: {error!r}"
        return Summary(seed, (), 0, (broken,), {}, time.process_time() - began_s)
    took_s = time.process_time() - began_s
    return Summary(seed, trial.faults, trial.requests, trial.violations, dict(trial.coverage), took_s)


def _ran(seeds: Sequence[int], campaign: Campaign) -> Iterator[Summary]:
    run = partial(run_seed, kinds=campaign.kinds)
    if campaign.processes == 1 or len(seeds) < 2:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(campaign.processes) as pool:
        results: Iterable[Summary] = pool.imap_unordered(run, seeds)
        yield from results


class _Progress:
    """Line of progress on standard error."""

    def __init__(self, left: int, total: int) -> None:
        self._left = left
        self._total = total
        self._done = 0
        self._began_s = self._shown_s = time.monotonic()
        self._live = sys.stderr.isatty()

    def advance(self, failed: int) -> None:
        """Count a seed, and show the progress from time to time."""
        self._done += 1
        now_s = time.monotonic()
        if (
            now_s - self._shown_s < (_PROGRESS_S if self._live else _PROGRESS_QUIET_S)
            and self._left > self._done
        ):
            return
        self._shown_s = now_s
        rate = self._done / max(1e-9, now_s - self._began_s)
        text = (
            f"{self._total - self._left + self._done} of {self._total} seeds, {rate:.2f} seeds/s, "
            f"{failed} with violations, {(self._left - self._done) / rate / 60:.0f} min left"
        )
        sys.stderr.write(f"\r\033[K{text}" if self._live and self._left > self._done else f"{text}\n")
        sys.stderr.flush()
