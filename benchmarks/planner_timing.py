"""Measurements of the planner's benchmarks: time, memory, gaps, quantiles."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from qlm.planner.fast.settings import SearchBudget
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import LITTLE_S

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Took:
    """Wall-clock time and processor time."""

    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.3f} s ({self.cpu_s:.3f} s of the processor)"


def timed(act: Callable[[], T]) -> tuple[T, Took]:
    """Do something, and say how long it took."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = act()
    return result, Took(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def within(limit_s: float, *, by_processor: bool = False) -> SearchBudget:
    """Search at most so long, by the clock on the wall or by the time of the processor."""
    stopwatch_s = time.process_time if by_processor else time.perf_counter
    return SearchBudget(time_limit_s=limit_s, stopwatch_s=stopwatch_s)


def peak_memory_gb() -> float:
    """Most memory that this process has had, in 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def gap_to(problem: Problem, penalty_s: float, least_s: float) -> float:
    """Return (penalty - least) / max(least, 1 s per request with a deadline); 0 if there is none."""
    dated = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    scale_s = max(least_s, LITTLE_S * dated)
    return (penalty_s - least_s) / scale_s if scale_s > 0 else 0.0


def quantiles(values: Sequence[float], levels: Sequence[float]) -> list[float]:
    """Quantiles, 0 of nothing."""
    if not values:
        return [0.0] * len(levels)
    return [float(each) for each in np.quantile(values, levels)]
