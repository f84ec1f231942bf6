"""Iterations in a row whose ends are known beforehand."""

from bisect import bisect_left
from typing import NamedTuple

from qlm.simulator.engine.step_time import FRACTION_BITS


class Run(NamedTuple):
    """Iterations of one unchanged batch, each longer than the one before it by the same amount.

    With n iterations, of which the first takes f and each next one g more, the last ends n f + g n(n-1)/2
    after the begin. All are integers, so that this is exactly the sum that adding one iteration after the
    other gives, wherever the run is cut; only what is reported is rounded down to nanoseconds.

    Attributes:
        begin_ticks: When the first iteration begins; for a run without iterations, when it ends.
        first_ticks: How long the first iteration takes.
        growth_ticks: By how much each iteration is longer than the one before it.
        iterations: How many there are; 0 if the engine only waits for KV blocks to be loaded.
    """

    begin_ticks: int
    first_ticks: int
    growth_ticks: int
    iterations: int

    def end_ticks(self, iterations: int) -> int:
        """When so many iterations are over, in ticks."""
        further = iterations * (iterations - 1) // 2
        return self.begin_ticks + iterations * self.first_ticks + further * self.growth_ticks

    def end_ns(self, iterations: int) -> int:
        """When so many iterations are over."""
        return self.end_ticks(iterations) >> FRACTION_BITS

    def through(self, at_ns: int) -> int:
        """Count the iterations until the first one that ends at or after `at_ns`; all if none does."""
        at_ticks = at_ns << FRACTION_BITS
        before = bisect_left(range(1, self.iterations + 1), at_ticks, key=self.end_ticks)
        return min(before + 1, self.iterations)
