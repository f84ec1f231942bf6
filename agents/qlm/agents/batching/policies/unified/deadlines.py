"""Deadlines that their share of an overloaded instance cannot meet.

By earliest deadline, an overloaded server meets few: each is late by the work of those before it. Moore's
rule (1968) leaves out the longest of those up to the first late one, until none is late. It keeps the most.
Here it leaves out none that runs, for the work that is done.

    share = D / (D + P), where D + P > capacity

P: paces of the readers. D: paces of the deadlines, each for half as much again as is expected to come. If the
share is too small for any deadline, one is served. With the whole capacity in place of the share, more
deadlines are met, and readers starve: at four times the capacity, QoE* fell from 0.45 to 0.19
(docs/batch-policy-unified.md).
"""

from heapq import heappop, heappush
from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import Flags, Floats, View

MARGIN: Final = 1.5
"""Pace of a deadline, over what the expected tokens to come need."""


def crowded_out(view: View, needs: Demands, members: Flags, capacity: float) -> Flags:
    """Return the deadlines that yield; none while D + P is within the capacity.

    Args:
        view: The instance.
        needs: What the requests need.
        members: Who takes part.
        capacity: Tokens per second of the instance.
    """
    out = np.zeros(len(view.ids), np.bool_)
    rows = (members & needs.timed).nonzero()[0]
    if not rows.size:
        return out
    within_s, left = view.deadline_s[rows] - view.now_s, np.maximum(1.0, view.left_mean[rows])
    timed = float((MARGIN * left / within_s).sum())
    paces = timed + float(needs.pace[members & ~needs.timed].sum())
    if paces <= capacity:
        return out
    kept = met_together(within_s, left / (capacity * timed / paces), view.inside[rows])
    if not kept.any():
        kept[np.argmin(left)] = True
    out[rows] = ~kept
    return out


def met_together(within_s: Floats, work_s: Floats, fixed: Flags) -> Flags:
    """Return the most deadlines that one server meets beside the fixed ones; of equal work, the first rows.

    Args:
        within_s: Time to each deadline.
        work_s: Work of each.
        fixed: Which are served in any case.
    """
    order = np.argsort(within_s, kind="stable")
    met = np.ones(len(order), np.bool_)
    if (np.cumsum(work_s[order]) <= within_s[order]).all():
        return met
    kept: list[tuple[float, int]] = []  # a heap, the longest first
    total_s = 0.0
    for row in order.tolist():
        total_s += float(work_s[row])
        if not fixed[row]:
            heappush(kept, (-float(work_s[row]), -row))
        while kept and total_s > within_s[row]:
            longest_s, longest = heappop(kept)
            total_s += longest_s
            met[-longest] = False
    return met
