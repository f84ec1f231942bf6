"""Runs of iterations whose end times are known in advance."""

from bisect import bisect_left
from typing import NamedTuple

from qlm.simulator.engine.step_time import FRACTION_BITS


class Run(NamedTuple):
    """Iterations of an unchanged batch, each longer than the one before by the same amount.

    If the first of n iterations takes f and each next one g more, the last ends n f + g n(n-1)/2 after the
    start. All are integers, so this equals the sum of single iterations, wherever the run is cut. Only
    reported times are rounded down to nanoseconds.

    Attributes:
        begin_ticks: Start of the first iteration; for a run without iterations, its end.
        first_ticks: Duration of the first iteration.
        growth_ticks: Difference between the durations of successive iterations.
        iterations: Their number; 0 if the engine only waits for KV blocks to load.
    """

    begin_ticks: int
    first_ticks: int
    growth_ticks: int
    iterations: int

    def end_ticks(self, iterations: int) -> int:
        """Return the end of iteration number `iterations`, in ticks."""
        further = iterations * (iterations - 1) // 2
        return self.begin_ticks + iterations * self.first_ticks + further * self.growth_ticks

    def end_ns(self, iterations: int) -> int:
        """Return the end of iteration number `iterations`, in nanoseconds."""
        return self.end_ticks(iterations) >> FRACTION_BITS

    def through(self, at_ns: int) -> int:
        """Count the iterations up to the first that ends at or after `at_ns`; all if none does."""
        at_ticks = at_ns << FRACTION_BITS
        before = bisect_left(range(1, self.iterations + 1), at_ticks, key=self.end_ticks)
        return min(before + 1, self.iterations)
