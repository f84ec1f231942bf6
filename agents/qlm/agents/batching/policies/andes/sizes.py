"""Batch sizes that are worth a solution, and when none is (Andes, section 4.2, optimisations 1 and 2)."""

from bisect import bisect_left
from typing import Final

import numpy as np

from qlm.agents.batching.packing import GROWTH_BLOCKS
from qlm.agents.batching.readership import Readership
from qlm.agents.batching.step_time import StepTime
from qlm.agents.batching.view import Ints, Machine, View

HIGH_WATER: Final = 0.9
"""Share of the KV cache in use above which memory counts as limited (section 4.2)."""

SIZES_MAX: Final = 3
"""Batch sizes tried: B_min, B_max and the middle (ours; the paper gives no grid)."""


def strictest_rate(readers: Readership) -> float:
    """Return the fastest pace among the readers, tokens per second; 0 without any."""
    return float(readers.rate[readers.reads].max(initial=0.0))


def limited(view: View, strictest: float) -> bool:
    """Return True if memory or the duration of an iteration limits the batch (optimisation 1)."""
    machine = view.machine
    used = 1 - machine.free_blocks / max(1, machine.kv_blocks)
    return used > HIGH_WATER or view.pace.step_s * strictest > 1


def batch_sizes(needed: Ints, machine: Machine, time: StepTime, strictest: float) -> list[int]:
    """Return the batch sizes to try, the largest first (optimisation 2).

    B_max: requests of the shortest text, until the KV cache is full. B_min: the largest batch that is still
    faster than the strictest pace. Where even B_max is, it is the only one.

    Args:
        needed: Blocks of each request.
        machine: The engine.
        time: Duration of an iteration.
        strictest: Fastest pace of a reader, tokens per second; 0 without a reader.
    """
    fit = int(np.searchsorted(np.cumsum(np.sort(needed) + GROWTH_BLOCKS), machine.kv_blocks, side="right"))
    largest = max(1, min(fit, machine.seqs_max))
    smallest, steps = _largest_faster(time, strictest, largest), SIZES_MAX - 1
    evenly = {smallest + round((largest - smallest) * step / steps) for step in range(steps + 1)}
    return sorted(evenly, reverse=True)


def _largest_faster(time: StepTime, strictest: float, largest: int) -> int:
    """Return the largest batch, up to `largest`, with iterations faster than a pace; at least 1."""
    if time.s(largest) * strictest < 1:
        return largest
    if time.s(1) * strictest >= 1:
        return 1
    # A larger batch is never faster.
    return bisect_left(range(1, largest + 1), True, key=lambda size: time.s(size) * strictest >= 1)
