"""The exact batch of one size by dynamic programming (Andes, Algorithm 2): the referee of the greedy packing.

Its time grows with requests x batch size x memory.
"""

from collections.abc import Sequence

import numpy as np

from qlm.agents.batching.view import Floats


def exact_batch(lengths: Sequence[int], gains: Floats, size: int, memory: int) -> tuple[float, list[int]]:
    """Return the largest total gain of exactly `size` requests that fit, and which they are (equation 4).

    Args:
        lengths: Memory that each request takes; any unit.
        gains: Gain of each, shape (requests).
        size: Number of requests to choose.
        memory: Memory in all.

    Returns:
        The gain and the requests; minus infinity and none if no such batch fits.
    """
    # best[b, m]: of the first requests, the largest gain of exactly b that take at most m.
    best = np.full((size + 1, memory + 1), -np.inf)
    best[0] = 0.0
    taken = np.zeros((len(lengths), size + 1, memory + 1), np.bool_)
    for item, length in enumerate(lengths):
        if length > memory:
            continue
        with_it = best[:-1, : memory + 1 - length] + gains[item]
        better = with_it > best[1:, length:]
        taken[item, 1:, length:] = better
        best[1:, length:] = np.where(better, with_it, best[1:, length:])
    chosen: list[int] = []
    count, left = size, memory
    if best[count, left] == -np.inf:
        return -np.inf, []
    for item in reversed(range(len(lengths))):
        if taken[item, count, left]:
            chosen.append(item)
            count, left = count - 1, left - lengths[item]
    return float(best[size, memory]), chosen[::-1]


def best_exact_batch(lengths: Sequence[int], gains: Floats, memory: int) -> tuple[float, list[int]]:
    """Return the best batch of any size.

    Args:
        lengths: Memory that each request takes.
        gains: Gain by batch size and request, shape (requests, requests); row 0 is for a batch of one.
        memory: Memory in all, at least the shortest length.
    """
    shortest = np.cumsum(np.sort(np.asarray(lengths)))
    sizes = range(1, int(np.searchsorted(shortest, memory, side="right")) + 1)
    return max((exact_batch(lengths, gains[size - 1], size, memory) for size in sizes), key=lambda it: it[0])
