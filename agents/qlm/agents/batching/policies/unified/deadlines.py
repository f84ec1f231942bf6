"""Deadlines that their share of an overloaded instance cannot meet.

By earliest deadline, an overloaded server meets few: each is late by the work of those before it. Moore's
rule (1968) leaves out the longest of those up to the first late one, until none is late. It keeps the most.

    share = D / (D + P), where D + P > capacity

D: paces of the deadlines. P: paces of the readers. With the whole capacity in place of the share, more
deadlines are met, and readers starve: at four times the capacity, QoE* fell from 0.45 to 0.19
(docs/batch-policy-unified.md).
"""

from heapq import heappush, heappushpop

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import Flags, Floats, View


def crowded_out(view: View, needs: Demands, members: Flags, capacity: float) -> Flags:
    """Return the deadlines that yield; none while the capacity has room for all paces.

    Args:
        view: The instance.
        needs: What the requests need.
        members: Who takes part.
        capacity: Tokens per second of the instance.
    """
    out = np.zeros(len(view.ids), np.bool_)
    timed = members & needs.timed
    paces = float(needs.pace[members].sum())
    if paces > capacity and timed.any():
        share = capacity * float(needs.pace[timed].sum()) / paces
        rows = timed.nonzero()[0]
        work_s = np.maximum(1.0, view.left_mean[rows]) / share
        out[rows] = ~met_together(view.deadline_s[rows] - view.now_s, work_s)
    return out


def met_together(within_s: Floats, work_s: Floats) -> Flags:
    """Return the most deadlines that one server meets; of equal work, those first in the columns.

    Args:
        within_s: Time to each deadline.
        work_s: Work of each.
    """
    order = np.argsort(within_s, kind="stable")
    met = np.ones(len(order), np.bool_)
    if (np.cumsum(work_s[order]) <= within_s[order]).all():
        return met
    kept: list[tuple[float, int]] = []  # a heap, the longest first
    total_s = 0.0
    for row in order.tolist():
        own = (-float(work_s[row]), -row)
        total_s += float(work_s[row])
        if total_s <= within_s[row]:
            heappush(kept, own)
            continue
        longest_s, longest = heappushpop(kept, own)
        total_s += longest_s
        met[-longest] = False
    return met
