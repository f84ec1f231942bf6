"""Greedy packing (Andes, Algorithm 1), the best batch size, and the cap on preemptions."""

from collections.abc import Sequence

import numpy as np

from qlm.agents.batching.packing import Packing
from qlm.agents.batching.view import Floats, Ints, View


def best_batch(view: View, packing: Packing, sizes: Sequence[int], gain: Floats) -> tuple[Ints, Floats]:
    """Return the rows of the best batch, and their priorities: gain per block (equation 5).

    Equation 4 is solved for each batch size by packing in the order of priority; the largest total gain wins,
    the larger batch at a tie. Ours: a request that does not fit lets later ones in; at equal priority those
    inside go first, then the engine's own order counts.

    Args:
        view: The instance.
        packing: Its packing.
        sizes: Batch sizes, the largest first.
        gain: Gain by size and row, shape (sizes, rows).
    """
    ties = np.argsort(view.outside, kind="stable")
    priority = gain / packing.needed  # equation 5
    orders = ties[np.argsort(-priority[:, ties], axis=1, kind="stable")]
    best, total, index = ties[:0], -np.inf, 0
    for number, size in enumerate(sizes):
        rows = packing.rows(orders[number], seqs_max=size, skips=True)
        value = float(gain[number, rows].sum())
        if value > total:
            best, total, index = rows, value, number
    return best, priority[index]


def with_cap(view: View, packing: Packing, rows: Ints, priority: Floats, cap: float) -> Ints:
    """Return the batch with at most so many preemptions that their mean per request stays within the cap.

    Optimisation 4. Which preemptions to leave out is not said: those of the highest priority stay (ours).
    """
    inside = view.inside
    budget = max(0, int(cap * view.pace.requests) - view.pace.preemptions)
    if np.count_nonzero(inside) - np.count_nonzero(inside[rows]) <= budget:
        return rows
    inside[rows], chosen = False, inside[rows]
    dropped = inside.nonzero()[0]
    spared = dropped[np.argsort(-priority[dropped], kind="stable")][: len(dropped) - budget]
    order = np.concatenate((rows[chosen], spared, rows[~chosen]))
    return packing.rows(order, skips=True)
