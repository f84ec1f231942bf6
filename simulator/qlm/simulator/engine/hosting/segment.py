"""Iterations in which the same requests decode: their tokens are delivered together."""

from collections.abc import Callable

import numpy as np

from qlm.agents.batching.view import Ints
from qlm.simulator.engine.decode_set import DecodeSet
from qlm.simulator.engine.hosting.columns import rows_of
from qlm.simulator.engine.run import Run


class OpenSegment:
    """The latest iterations without a change of the decoding requests.

    A run that continues the one before is joined to it. So the segments, and with them the readers, do not
    depend on where a driver cuts the runs.

    Attributes:
        rows: Rows of the decoding requests.
        run: Times of its iterations.
    """

    def __init__(self, decodes: DecodeSet) -> None:
        self.rows: Ints = np.zeros(0, np.int64)
        self.run = Run(0, 0, 0, 0)
        self._decodes = decodes
        self._changes = -1

    def follow(self, run: Run, iterations: int, growth_ticks: int, flush: Callable[[], None]) -> None:
        """Let iterations pass that only decode; `flush` first if they do not continue the segment.

        Args:
            run: The run of which they are the first.
            iterations: Their number.
            growth_ticks: Growth of each iteration against the one before.
            flush: Takes the present segment and closes it.
        """
        mine = self.run
        if mine.iterations and self._changes == self._decodes.changes:
            goes_on = mine.end_ticks(mine.iterations) == run.begin_ticks and mine.growth_ticks == growth_ticks
            if goes_on and mine.first_ticks + mine.iterations * growth_ticks == run.first_ticks:
                self.run = mine._replace(iterations=mine.iterations + iterations)
                return
        flush()
        self.rows = rows_of(tuple(self._decodes.members()))
        self.run = run._replace(growth_ticks=growth_ticks, iterations=iterations)
        self._changes = self._decodes.changes

    def close(self) -> None:
        """Forget the segment."""
        self.run = self.run._replace(iterations=0)
